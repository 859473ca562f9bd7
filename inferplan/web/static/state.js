// Everything the user chose, and the fragment of the address that holds it: key=value&key=value, checked when read.

const NAME = { read: (text) => (/^[\w@.,:+/-]{1,200}$/.test(text) ? text : undefined) };
const whole = (least, most = 1e9) => ({
  says: `A whole number from ${least} to ${most.toLocaleString("en")}`,
  read(text) {
    const value = Number(text);
    return /^\d+$/.test(text) && value >= least && value <= most ? value : undefined;
  },
});
const positive = {
  says: "A number above 0",
  read(text) {
    const value = Number(text);
    return text.trim() !== "" && Number.isFinite(value) && value > 0 ? value : undefined;
  },
};
/** Requests per second from each time of the day on: "00:00=0.1,07:00=2". */
const RATES = { read: (text) => (/^[!-~ ]{1,1000}$/.test(text) ? text.replace(/ /g, "") : undefined) };
const oneOf = (...names) => ({ read: (text) => (names.includes(text) ? text : undefined), names });

/** Keys of a deployment and its load, by the names of the command line's options. */
export const VIEW = {
  model: NAME,
  gpu: NAME,
  engine: NAME,
  quant: NAME,
  weights: NAME,
  kv: NAME,
  activations: NAME,
  tp: whole(1, 4096),
  pp: whole(1, 4096),
  dp: whole(1, 4096),
  ep: whole(1, 4096),
  cp: whole(1, 4096),
  batch: whole(1),
  prompt: whole(1),
  output: whole(1),
  price: positive,
};
/** Keys of the tools beside the estimate; times are milliseconds, as their labels say. */
export const TOOLS = {
  fit: {
    context: whole(1),
    users: whole(1),
    people: whole(1),
    workload: NAME,
    most: whole(1, 4096),
    format: NAME,
    gpu: NAME,
  },
  simulate: {
    load: oneOf("rate", "people", "concurrency"),
    rate: positive,
    people: whole(1),
    daily: positive,
    concurrency: whole(1),
    think: positive,
    workload: NAME,
    requests: whole(1),
    seed: whole(0),
    ttft: positive,
    tpot: positive,
    e2e: positive,
    at: oneOf("mean", "p50", "p90", "p95", "p99"),
  },
  plan: {
    load: oneOf("rate", "people", "users"),
    rate: positive,
    people: whole(1),
    daily: positive,
    users: whole(1),
    think: positive,
    workload: NAME,
    prompt: whole(1),
    output: whole(1),
    ttft: positive,
    tpot: positive,
    e2e: positive,
    percentile: positive,
    gpu: NAME,
    quant: NAME,
    most: whole(1, 4096),
    confidence: positive,
  },
  day: {
    profile: NAME,
    rates: RATES,
    peak: positive,
    workload: NAME,
    ttft: positive,
    tpot: positive,
    e2e: positive,
    percentile: positive,
    cold: positive,
    policies: NAME,
    utilisation: positive,
    least: whole(0),
    hours: positive,
    seed: whole(0),
    show: oneOf("static", "scheduled", "reactive"),
  },
};
/** Prices of an API for a million input and output tokens: "0.6/0.8". */
const PRICES = { read: (text) => (/^\d*\.?\d+(e-?\d+)?\/\d*\.?\d+(e-?\d+)?$/.test(text) ? text : undefined) };
export const TABS = ["estimate", "compare", "fit", "simulate", "plan", "day"];
export const LETTERS = ["A", "B", "C", "D"];

/** What a link leaves out: as on the command line. */
const USUAL = { tp: 1, batch: 1, prompt: 1024, output: 256 };

export function fresh() {
  return {
    tab: "estimate",
    active: 0,
    views: [{ model: "llama-3.1-8b", gpu: "h100-sxm", ...USUAL, batch: 8 }],
    fit: { users: 1 },
    simulate: { load: "rate", rate: 4 },
    plan: { load: "rate", rate: 10, workload: "chat" },
    day: { rates: "00:00=0.1,08:00=1,11:00=4,14:00=1,18:00=0.3", workload: "rag", cold: 90 },
  };
}

const written = (value) =>
  encodeURIComponent(value).replace(/%2C/g, ",").replace(/%40/g, "@").replace(/%2F/g, "/").replace(/%3A/g, ":");

/** The fragment, without its #. */
export function write(state) {
  const pairs = [];
  const put = (prefix, values, keys) => {
    for (const key of Object.keys(keys))
      if (values[key] !== undefined) pairs.push(`${prefix}${key}=${written(values[key])}`);
  };
  state.views.forEach((view, index) => put(index === 0 ? "" : `${LETTERS[index].toLowerCase()}.`, view, VIEW));
  pairs.push(`tab=${state.tab}`);
  if (state.views.length > 1) pairs.push(`active=${LETTERS[state.active].toLowerCase()}`);
  if (state.api) pairs.push(`api=${state.api}`);
  for (const [tool, keys] of Object.entries(TOOLS)) put(`${tool}.`, state[tool], keys);
  return pairs.join("&");
}

/** The state that a fragment holds, and what of it cannot be read, in words. An empty fragment is a fresh state. */
export function read(fragment) {
  const state = fresh();
  const wrong = [];
  if (fragment === "") return { state, wrong };
  state.views = [{}];
  for (const tool of Object.keys(TOOLS)) state[tool] = {};
  for (const pair of fragment.split("&")) take(state, pair, wrong);
  const gaps = state.views.findIndex((view) => !view || !view.model || !view.gpu);
  if (gaps === 0) {
    wrong.push("a model or an accelerator is missing");
    state.views[0] = { ...fresh().views[0], ...state.views[0] };
  }
  state.views = state.views.filter((view) => view?.model && view.gpu).map((view) => ({ ...USUAL, ...view }));
  state.active = Math.min(state.active, state.views.length - 1);
  for (const tool of Object.keys(TOOLS)) if (!Object.keys(state[tool]).length) state[tool] = fresh()[tool];
  return { state, wrong };
}

function take(state, pair, wrong) {
  const cut = pair.indexOf("=");
  let key;
  let text;
  try {
    [key, text] = [pair.slice(0, cut), pair.slice(cut + 1)].map(decodeURIComponent);
  } catch {
    wrong.push(pair);
    return;
  }
  const [home, name, keys] = place(state, key);
  const value = keys?.[name]?.read(text);
  if (value === undefined) wrong.push(`${key}=${text}`);
  else home[name] = name === "active" && home === state ? LETTERS.indexOf(text.toUpperCase()) : value;
}

const TOP = { tab: oneOf(...TABS), api: PRICES, active: oneOf(...LETTERS.map((letter) => letter.toLowerCase())) };

/** Where the value of a key belongs: the object, the name in it, the keys that it admits. */
function place(state, key) {
  const [first, second] = key.split(".");
  if (second === undefined) return first in TOP ? [state, first, TOP] : [state.views[0], first, VIEW];
  if (first in TOOLS) return [state[first], second, TOOLS[first]];
  const index = LETTERS.indexOf(first.toUpperCase());
  if (index < 1) return [state, second, undefined];
  state.views[index] ??= {};
  return [state.views[index], second, VIEW];
}
