// A fit, a simulation, a plan or a day: started, followed while it runs, cancelled, shown. One at a time in each tab.

import { Refusal, Unreachable, ask, checked } from "./api.js";
import { copy, fill, h, say } from "./dom.js";
import { refusalCard } from "./refusal.js";
import { count } from "./units.js";

const JOB = { id: "string", state: "string", progress: "object" };
const ENDS = ["done", "failed", "cancelled"];

/**
 * The tab around a job. `kind` is what the server calls it; `options()` its options or a text saying what is missing;
 * `draw(result, job)` gives the nodes of its result; `lost(retry)` is told when the server does not answer; `begun()`
 * when one is started. A job that runs beside an answer, as `label`, is begun by the page: the focus stays where it is.
 */
export class Job {
  constructor({ kind, word, options, draw, lost, apply, begun, label }) {
    Object.assign(this, { kind, options, draw, lost, apply, begun, label, id: null, source: null, memory: `inferplan-${kind}` });
    this.start = h("button", { type: "button", class: "main", onclick: () => this.#start() }, word);
    this.wrong = h("p", { class: "wrong", role: "alert" });
    this.form = h("div", { class: "row" }, this.start, this.wrong);
    this.found = h("section", { class: "job", id: `${kind}-result`, "aria-label": label ?? "Answer" });
  }

  /** Takes up the job that this tab of the browser started before it was loaded again. */
  resume() {
    const before = sessionStorage.getItem(this.memory);
    if (before) this.#follow(before);
  }

  /** Starts one in the place of another. */
  begin() {
    this.clear();
    return this.#start();
  }

  /** Shows nothing, and ends what runs. */
  clear() {
    if (this.id) ask("DELETE", `/api/jobs/${this.id}`).catch(() => null);
    this.#over();
    this.shown = null;
    sessionStorage.removeItem(this.memory);
    fill(this.found);
  }

  async #start() {
    const options = this.options();
    this.wrong.textContent = typeof options === "string" ? options : "";
    if (typeof options === "string") return;
    this.start.disabled = true;
    this.begun?.();
    try {
      const { id } = checked("/api/jobs", await ask("POST", "/api/jobs", { kind: this.kind, options }), {
        id: "string",
      });
      sessionStorage.setItem(this.memory, id);
      this.#follow(id);
      if (this.label) return;
      say("Started");
      this.found.querySelector("button")?.focus();
    } catch (error) {
      this.start.disabled = false;
      if (error instanceof Unreachable) this.lost(() => this.#start());
      else this.#refused(error);
    }
  }

  #follow(id) {
    this.id = id;
    this.shown = null;
    this.start.disabled = true;
    this.since = Date.now();
    this.#running({ done: 0, total: null, text: "" });
    const source = new EventSource(`/api/jobs/${id}/events`);
    this.source = source;
    source.addEventListener("running", ({ data }) => this.#running(JSON.parse(data).progress));
    for (const end of ENDS) source.addEventListener(end, ({ data }) => this.#ended(JSON.parse(data)));
    source.onerror = () => {
      source.close();
      if (this.source === source) this.#look(id);
    };
  }

  /** The stream broke off: is the job still there, is the server? */
  async #look(id) {
    try {
      const job = checked("/api/jobs", await ask("GET", `/api/jobs/${id}`), JOB);
      if (ENDS.includes(job.state)) this.#ended(job);
      else setTimeout(() => this.id === id && this.#follow(id), 1000);
    } catch (error) {
      if (error instanceof Unreachable) this.lost(() => this.#look(id));
      else {
        this.#over();
        if (error instanceof Refusal && error.status === 404) fill(this.found);
        else this.#refused(error);
      }
    }
  }

  #running({ done, total, text }) {
    const part = total ? { max: total, value: done } : {};
    const seconds = Math.round((Date.now() - this.since) / 1000);
    const far = total ? `${count(done)} of ${count(total)} ${text}` : done ? `${count(done)} ${text}` : "Running";
    const words = `${far}, ${count(seconds)} s`;
    clearTimeout(this.tick);
    this.tick = setTimeout(() => this.#running({ done, total, text }), 1000);
    if (!this.bar?.isConnected) {
      this.bar = h("progress", { "aria-label": "Progress" });
      this.words = h("p", { class: "soft" });
      const cancel = h("button", { type: "button", "data-key": "cancel", onclick: () => this.#cancel() }, "Cancel");
      fill(this.found, h("div", { class: "card progress" }, this.words, this.bar, h("div", {}, cancel)));
    }
    if (total) Object.assign(this.bar, part);
    else this.bar.removeAttribute("value");
    this.words.textContent = words;
  }

  async #cancel() {
    try {
      this.#ended(checked("/api/jobs", await ask("DELETE", `/api/jobs/${this.id}`), JOB));
    } catch (error) {
      if (error instanceof Unreachable) this.lost(() => this.#look(this.id));
      else this.#refused(error);
    }
  }

  #over() {
    clearTimeout(this.tick);
    this.source?.close();
    this.source = this.id = null;
    this.start.disabled = false;
  }

  /** Draws what is shown once more, in other colours. */
  redraw() {
    if (this.shown) this.#show(this.shown);
  }

  #ended(job) {
    this.#over();
    this.shown = null;
    if (job.state === "cancelled") {
      sessionStorage.removeItem(this.memory);
      fill(
        this.found,
        h("p", { class: "card", id: `${this.kind}-cancelled` }, "Cancelled. No part of it runs any more."),
      );
      say("Cancelled");
      if (!this.label) this.start.focus();
      return;
    }
    this.shown = job;
    this.#show(job);
    say(job.error ? job.error.what : (this.found.querySelector("h2")?.textContent ?? "Done"));
  }

  #show(job) {
    const shown = job.result ? this.draw(job.result, job) : [];
    const opening = (job.opening ?? []).map((line) => h("p", {}, line));
    const notes = (job.notes ?? []).map((note) => h("li", {}, note));
    fill(
      this.found,
      job.error && refusalCard(new Refusal(job.error, 409), { apply: this.apply }),
      opening.length > 0 && h("section", { class: "card", id: `${this.kind}-load` }, h("h2", {}, "The load"), opening),
      shown,
      notes.length > 0 && h("section", { class: "card" }, h("h2", {}, "Notes"), h("ul", { class: "notes" }, notes)),
      job.command &&
        h(
          "section",
          { class: "card" },
          h(
            "div",
            { class: "head" },
            h("h2", {}, "The same on the command line"),
            h(
              "button",
              {
                type: "button",
                "data-key": "copy-command",
                onclick: (event) => copy(job.command, event.currentTarget),
              },
              "Copy command line",
            ),
          ),
          h("pre", {}, job.command),
        ),
    );
  }

  #refused(error) {
    this.#over();
    fill(this.found, refusalCard(error, { apply: this.apply, again: this.label && (() => this.#start()) }));
    say(error.what ?? error.message);
  }
}
