// What users experience under load: a simulation of the deployment in hand.

import { Simulated } from "./behind.js";
import { csv, h, heading, save, saving, table } from "./dom.js";
import { fields, limitOptions, limits, load, loadOptions } from "./fields.js";
import { answer, figure } from "./figures.js";
import { Job } from "./job.js";
import { LoadCurves } from "./loads.js";
import { spread, timeline } from "./runs.js";
import { TOOLS } from "./state.js";
import { title } from "./controls.js";
import { count, decimal, percent, time } from "./units.js";

const KEPT = ["model", "gpu", "engine", "quant", "weights", "activations", "kv", "tp", "pp", "dp", "ep", "cp"];
const ONE_PASS = { e2el_s: "Latency at the server" };
const LATENCIES = {
  ttft_s: "Time to first token at the server",
  tpot_s: "Time per output token",
  itl_s: "Between two tokens",
  e2el_s: "End to end",
};

/** The deployment in a view, without its load and price. */
export const deployment = (options) => Object.fromEntries(KEPT.map((key) => [key, options[key]]));

export const given = (object) =>
  Object.fromEntries(Object.entries(object).filter(([, value]) => value !== undefined && value !== ""));

/** The fields of the form. */
function questions(names) {
  const workloads = [["", "none: prompt and output of the load"], ...names.map((name) => [name, name])];
  return [
    ...load("Traffic", "concurrency"),
    { key: "workload", label: "Named workload", kind: "select", options: workloads },
    { key: "requests", label: "Requests to simulate", kind: "number", placeholder: "as many as needed" },
    { key: "seed", label: "Seed of lengths and arrivals", kind: "number", placeholder: "0" },
    ...limits("none"),
  ];
}

export class SimulateTab {
  constructor({ change, apply, lost, catalog }) {
    this.silent = new Set(catalog.models.filter((model) => model.generates === false).map((model) => model.name));
    this.form = fields(questions(catalog.workloads), { prefix: "simulate", read: TOOLS.simulate, change });
    this.job = new Job({
      kind: "simulate",
      word: "Run the simulation",
      options: () => this.#options(),
      draw: (result, job) => {
        this.curves.follow(result, job);
        return draw(result, job, { words: catalog.words, curves: this.curves.node });
      },
      begun: () => this.curves.clear(),
      lost,
      apply,
    });
    this.curves = new LoadCurves({ chosen: () => this.state?.simulate.at, change, lost });
    this.heading = h("h2");
    this.node = [
      h(
        "section",
        { class: "card", "aria-label": "Traffic" },
        h("div", { class: "head" }, this.heading),
        h("div", { class: "form" }, this.form.nodes, h("div", { class: "wide" }, this.job.form)),
      ),
      this.job.found,
    ];
  }

  set(state) {
    this.state = state;
    this.heading.textContent = `Simulate ${title(state.views[state.active])}`;
    this.form.show({ load: "rate", ...state.simulate });
  }

  #options() {
    const { simulate: asked, views, active } = this.state;
    const view = views[active];
    const load = loadOptions(asked);
    if (typeof load === "string") return load;
    const lengths = asked.workload
      ? { workload: asked.workload }
      : { prompt: view.prompt, output: this.silent.has(view.model) ? undefined : view.output };
    const { requests, seed } = asked;
    return given({ ...deployment(view), ...load, ...lengths, requests, seed, ...limitOptions(asked) });
  }
}

/** The nodes of a result: the verdict with its figures, the latencies, and `curves` of them over load. */
function draw(result, job, { words, curves }) {
  const run = new Simulated(result, { words, job, view: given(deployment(job.options)) });
  const names = result.conditions.generates === false ? ONE_PASS : LATENCIES;
  const { behind } = job; // there is none where replicas come and go
  return [verdict(result, run), behind && spread(result, behind, names), behind && curves, latencyTable(result, run), behind && timeline(behind)];
}

/** A figure of the headline whose number opens what it is; `names` are words of the glossary. */
const opened = (run, name, text, names, notes, rows) =>
  figure(name, run.number(text, name, names, () => rows ?? []), ...notes);

function verdict(result, run) {
  return h(
    "section",
    { class: "card" },
    h(
      "div",
      { class: "title" },
      h("h2", { id: "verdict" }, result.verdict.charAt(0).toUpperCase() + result.verdict.slice(1)),
    ),
    answer(slowest(result, run), rates(result, run), room(result, run)),
  );
}

/** The 95th percentiles; below each the mean with its band, which is of means and not of percentiles. */
function slowest(result, run) {
  const band = (stem) => {
    const [mean, low, high] = [result[`${stem}_s`]?.mean, result[`${stem}_low_s`], result[`${stem}_high_s`]];
    return low == null ? "" : `mean ${time(mean)}; 80 % of measured means: ${time(low)} to ${time(high)}`;
  };
  const p95 = (what, key) => {
    if (result[key]?.p95 == null) return false;
    const name = `${what}, 95th percentile`;
    return figure(name, run.latency(time(result[key].p95), name, { key, at: "p95" }), band(key.replace("_s", "")));
  };
  return result.conditions.generates === false
    ? p95("Latency", "e2el_s")
    : [p95("Time to first token", "ttft_s"), p95("Time per output token", "tpot_s")];
}

function rates({ capacity, conditions, goodput_requests_per_s: goodput, slo, slo_attained: kept, throughput }, run) {
  const rate = (value) => `${Number(value.toPrecision(4))}`;
  return [
    opened(run, "Requests per second", rate(throughput.requests_per_s), ["throughput"], [
      capacity && `${percent(capacity.load, 0)} of the maximum, ${rate(capacity.requests_per_s)}`,
    ]),
    conditions.generates !== false &&
      opened(
        run,
        "Output tokens per second",
        decimal(throughput.output_tokens_per_s, 1),
        ["token", "throughput"],
        [`${decimal(throughput.total_tokens_per_s, 1)} in and out`],
      ),
    kept !== null &&
      opened(
        run,
        "Within the limits",
        percent(kept),
        ["goodput", "SLO"],
        [goodput !== null && `${rate(goodput)} requests per second`],
        Object.entries(slo).map(([key, limit]) => [`Limit on ${key.replace("_s", "").toUpperCase()}`, time(limit)]),
      ),
  ];
}

/** What requests wait for and what they take. */
function room({ conditions, kv, preemptions, queue, requests, run: sent }, run) {
  return [
    queue.wait_mean_s !== null &&
      opened(
        run,
        "Wait until admission",
        `${time(queue.wait_mean_s)} mean`,
        ["admission"],
        [`longest ${time(queue.wait_max_s)}`],
      ),
    conditions.generates !== false &&
      opened(
        run,
        "KV cache in use",
        `${percent(kv.use_peak)} at most`,
        ["KV cache", "preemption"],
        [`mean ${percent(kv.use_mean)}; ${count(preemptions)} preemptions`],
        [["Of", kv.capacity_tokens && `${count(kv.capacity_tokens)} tokens`]],
      ),
    opened(
      run,
      "Requests counted",
      `${count(requests.finished)} finished`,
      [],
      [`of ${count(requests.arrived)} that arrived; ${count(sent.sent)} sent`],
    ),
  ];
}

function latencyTable(result, run) {
  const right = (text) => ({ text, right: true });
  const columns = ["mean", "p50", "p90", "p95", "p99"];
  const generates = result.conditions.generates !== false;
  const latencies = Object.entries(generates ? LATENCIES : ONE_PASS).filter(([key]) => result[key]);
  const rows = latencies.map(([key, name]) => [
    name,
    ...columns.map((at) => {
      const text = timed(result[key][at], result.intervals[key]?.[at]);
      return result[key][at] === null ? text : run.latency(text, `${name}, ${at}`, { key, at });
    }),
  ]);
  const raw = latencies.map(([key]) => [key, ...columns.map((at) => result[key][at])]);
  return h(
    "section",
    { class: "card" },
    heading(
      h("h2", {}, "Latency"),
      saving("CSV", "Latency", () => save("simulation.csv", csv([["latency", ...columns], ...raw]), "text/csv")),
      saving("JSON", "Simulation", () => save("simulation.json", JSON.stringify(result, null, 2), "application/json")),
    ),
    table("± is the 95 % confidence interval over seeds, where there is one", ["latency", ...columns.map(right)], rows),
  );
}

/** A time and half its confidence interval, in percent, as the command line prints it. */
function timed(value, interval) {
  if (value === null || !interval || !(value > 0)) return time(value);
  return `${time(value)} ±${percent((interval[1] - interval[0]) / 2 / value)}`;
}
