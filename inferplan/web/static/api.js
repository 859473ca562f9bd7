// What is asked of the server, and the three ways in which it may not answer.

/** The server refuses: what, because, hint are its own words. */
export class Refusal extends Error {
  constructor({ what, because, hint, picture, exit_code: exitCode }, status) {
    super(what);
    Object.assign(this, { what, because: because ?? "", hint: hint ?? "", picture: picture ?? "", exitCode, status });
  }
}
/** Nobody answers. */
export class Unreachable extends Error {}
/** Something answers that is not the server this page was made for. */
export class Malformed extends Error {
  get because() {
    return this.message;
  }
}

const PATIENCE = 20_000;

/** The JSON that the server answers. Raises one of the three above. */
export async function ask(method, path, body) {
  let reply;
  let text;
  try {
    reply = await fetch(path, {
      method,
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(PATIENCE),
    });
    text = await reply.text();
  } catch (error) {
    throw new Unreachable(error.name === "TimeoutError" ? "no answer within 20 s" : error.message);
  }
  if (reply.status === 204) return null;
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Malformed(`${path} answered ${reply.status} with something that is not JSON`);
  }
  if (reply.ok) return value;
  if (typeof value?.error?.what === "string") throw new Refusal(value.error, reply.status);
  throw new Malformed(`${path} answered ${reply.status} without saying what is wrong`);
}

/** Raises `Malformed` unless `reply` has every key of `shape`, of its type; "a.b" goes down, "?" admits null. */
export function checked(path, reply, shape) {
  for (const [key, wanted] of Object.entries(shape)) {
    const value = key.split(".").reduce((inner, part) => inner?.[part], reply);
    const found = Array.isArray(value) ? "array" : value === null ? "null" : typeof value;
    if (found !== wanted.replace("?", "") && !(wanted.startsWith("?") && (found === "null" || found === "undefined"))) {
      throw new Malformed(`the answer of ${path} has no ${wanted.replace("?", "")} '${key}'`);
    }
  }
  return reply;
}

/**
 * One question asked over and over while sliders move. At most two are on their way; of what waits only the newest is
 * sent; a reply that comes after a newer one is dropped.
 */
export class Channel {
  #asked = 0;
  #shown = 0;
  #open = 0;
  #waiting = null;

  /** `send(body)` gives a promise; `show(reply, body)` and `fail(error, body)` are called in order only. */
  constructor(send, show, fail) {
    Object.assign(this, { send, show, fail });
  }

  ask(body) {
    this.#waiting = body;
    this.#next();
  }

  /** Replies that are on their way are of no use any more. */
  forget() {
    this.#waiting = null;
    this.#shown = ++this.#asked;
  }

  #next() {
    if (this.#waiting === null || this.#open >= 2) return;
    const body = this.#waiting;
    const number = ++this.#asked;
    this.#waiting = null;
    this.#open += 1;
    const answer = (tell) => (value) => {
      if (number > this.#shown) {
        this.#shown = number;
        tell(value, body);
      }
    };
    this.send(body)
      .then(answer(this.show), answer(this.fail))
      .finally(() => {
        this.#open -= 1;
        this.#next();
      });
  }
}
