// Latency over load: the same simulation under more and less of it, run once its answer stands.

import { choosable, h } from "./dom.js";
import { Job } from "./job.js";
import { Plotted } from "./pictures.js";
import { count, decimal, percent, shortTime, time } from "./units.js";

const AT = ["mean", "p50", "p90", "p95", "p99"];
const NAMES = { ttft_s: "Time to first token", tpot_s: "Time per output token", e2el_s: "End to end" };
/** Requests of each run, at most, unless so many are in flight that a tenth is more. */
const SHORT = 5000;
/** Options that state a load: what an axis of it is called. */
const LOADS = { rate: "requests per second", people: "people", "in-flight": "requests in flight" };

export class LoadCurves {
  constructor({ chosen, change, lost }) {
    Object.assign(this, { chosen, change, of: null, memory: "inferplan-loads-of" });
    this.job = new Job({
      kind: "loads",
      label: "More and less load",
      options: () => this.#options(),
      draw: ({ loads }) => this.#draw(loads),
      lost,
    });
    this.node = this.job.found;
  }

  /** A simulation has its answer: runs the loads, or takes them up where they were before the page was loaded again. */
  follow(result, job) {
    if (this.of?.job.id === job.id) return this.job.redraw();
    this.of = { result, job };
    if (!job.behind || !this.#load()) return this.clear();
    if (sessionStorage.getItem(this.memory) === job.id) return this.job.resume();
    sessionStorage.setItem(this.memory, job.id);
    return this.job.begin();
  }

  clear() {
    sessionStorage.removeItem(this.memory);
    this.job.clear();
  }

  #load() {
    return Object.keys(LOADS).find((key) => this.of.job.options[key]);
  }

  #options() {
    const { result, job } = this.of;
    const most = Math.max(SHORT, 10 * (job.options["in-flight"] ?? 0));
    return { ...job.options, requests: Math.min(result.run.sent, most) };
  }

  #draw(loads) {
    const { result, job } = this.of;
    const key = this.#load();
    const runs = [...loads, { ...result, load: 1, asked: job.options[key] }].sort((left, right) => left.load - right.load);
    const usual = `p${Number(result.run.percentile ?? 95)}`;
    const chosen = this.chosen() ?? (AT.includes(usual) ? usual : "p95");
    const shown = Object.keys(NAMES).filter((name) =>
      result.conditions.generates === false ? name === "e2el_s" : name !== "e2el_s" || result.slo.e2el_s != null,
    );
    const pictures = shown.map((name) => new Plotted(`loads-${name.replace("_s", "")}`, `${NAMES[name]} over load`, "loads"));
    const show = (at) => pictures.forEach((picture, index) => curve(picture, { name: shown[index], at, runs, result, axis: LOADS[key] }));
    const card = { id: "loads", title: "Latency over load", list: "loads-at", label: "Shown", names: AT, chosen, show };
    const nodes = pictures.map((picture) => picture.node);
    return choosable({ ...card, change: (at) => this.change("at", at) }, h("div", { class: "charts" }, nodes));
  }
}

/** One latency over the load, with its limit and the load that was asked for. */
function curve(picture, { name, at, runs, result, axis }) {
  const limit = result.slo[name];
  const x = runs.map((run) => run.asked);
  const values = runs.map((run) => (run.verdict === "overloaded" ? null : run[name][at]));
  const asked = runs.find((run) => run.load === 1).asked;
  const top = Math.max(0, ...values.filter((value) => value !== null));
  const most = 1.1 * (limit != null && limit < 4 * top ? Math.max(top, limit) : top || limit || 1);
  const written = (index) => (values[index] === null ? "overloaded" : time(values[index], 3));
  const load = (value) => (Number.isInteger(value) ? count(value) : decimal(value, 2));
  const over = runs.find((run) => run.verdict === "overloaded");
  const room = 0.03 * (x.at(-1) - x[0]);
  picture.show(
    {
      x: { label: axis, format: (value) => String(Number(value.toPrecision(3))), range: () => [x[0] - room, x.at(-1) + room] },
      y: { format: shortTime, range: () => [0, most] },
      at: x,
      lines: [
        { name: at, colour: "a", points: true, values },
        ...(limit == null ? [] : [{ name: "limit", colour: "bad", dash: [6, 4], values: x.map(() => limit) }]),
      ],
      marks: [{ x: asked, text: "asked for", low: 1 }],
      say: (index) => `${load(x[index])} ${axis}: ${written(index)}`,
      rest: "Point at the curve to read it.",
    },
    {
      caption: [limit != null && `The limit is ${shortTime(limit)}.`, over && `Overloaded from ${load(over.asked)} on: the queue grows.`]
        .filter(Boolean)
        .join(" "),
      columns: [axis, "of the load", at, ...(limit == null ? [] : ["of the limit"])],
      rows: runs.map((run, index) => [
        load(run.asked),
        percent(run.load, 0),
        written(index),
        ...(limit == null ? [] : [values[index] === null ? "–" : percent(values[index] / limit, 0)]),
      ]),
      all: runs.map((run, index) => [run.asked, run.load, values[index], run.verdict]),
      heads: [axis, "load", `${name} ${at}`, "verdict"],
      legend: [{ name: at, of: "of-0" }, ...(limit == null ? [] : [{ name: "limit", of: "wrong-line" }])],
    },
  );
}
