// What users experience under load: a simulation of the deployment in hand.

import { csv, h, save, saving, table } from "./dom.js";
import { fields } from "./fields.js";
import { figure } from "./figures.js";
import { Job } from "./job.js";
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

export const given = (object) =>
  Object.fromEntries(Object.entries(object).filter(([, value]) => value !== undefined && value !== ""));

/** The fields of the form. */
function questions(names) {
  const workloads = [["", "none: prompt and output of the load"], ...names.map((name) => [name, name])];
  return [
    {
      key: "load",
      label: "Traffic",
      kind: "choice",
      options: [
        ["rate", "requests a second"],
        ["concurrency", "users at once"],
      ],
    },
    {
      key: "rate",
      label: "Requests a second",
      kind: "number",
      whole: false,
      when: (values) => values.load === "rate",
    },
    {
      key: "concurrency",
      label: "Users, each with one request at a time",
      kind: "number",
      when: (values) => values.load === "concurrency",
    },
    { key: "workload", label: "Named workload", kind: "select", options: workloads },
    { key: "requests", label: "Requests to simulate", kind: "number", placeholder: "as many as it takes" },
    { key: "seed", label: "Seed of lengths and arrivals", kind: "number", placeholder: "0" },
    {
      key: "ttft",
      label: "Limit on the time to first token, ms",
      kind: "number",
      whole: false,
      placeholder: "none",
    },
    {
      key: "tpot",
      label: "Limit on the time per output token, ms",
      kind: "number",
      whole: false,
      placeholder: "none",
    },
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
      draw,
      lost,
      apply,
    });
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
    this.form.show(state.simulate);
  }

  #options() {
    const { simulate: asked, views, active } = this.state;
    const view = views[active];
    const load = asked.load ?? "rate";
    if (!asked[load]) return load === "rate" ? "How many requests a second?" : "How many users at once?";
    const lengths = asked.workload
      ? { workload: asked.workload }
      : { prompt: view.prompt, output: this.silent.has(view.model) ? undefined : view.output };
    const limits = { ttft: asked.ttft && `${asked.ttft}ms`, tpot: asked.tpot && `${asked.tpot}ms` };
    return given({
      ...Object.fromEntries(KEPT.map((key) => [key, view[key]])),
      [load]: asked[load],
      ...lengths,
      requests: asked.requests,
      seed: asked.seed,
      ...limits,
    });
  }
}

/** The nodes of a result: the verdict with its figures, and the latencies. */
const draw = (result) => [verdict(result), latencyTable(result)];

function verdict(result) {
  const generates = result.conditions.generates !== false;
  const p95 = (name, key, stem) =>
    result[key]?.p95 != null && figure(`${name}, 95th percentile`, time(result[key].p95), band(stem));
  const { capacity, throughput, queue, kv, requests } = result;
  const band = (key) =>
    result[`${key}_low_s`] == null
      ? ""
      : `80 % of measured means: ${time(result[`${key}_low_s`])} to ${time(result[`${key}_high_s`])}`;
  return h(
    "section",
    { class: "card" },
    h(
      "div",
      { class: "title" },
      h("h2", { id: "verdict" }, result.verdict.charAt(0).toUpperCase() + result.verdict.slice(1)),
    ),
    h(
      "dl",
      { class: "answer" },
      generates
        ? [p95("Time to first token", "ttft_s", "ttft"), p95("Time per output token", "tpot_s", "tpot")]
        : p95("Latency", "e2el_s", "e2el"),
      figure(
        "Requests a second",
        `${Number(throughput.requests_per_s.toPrecision(4))}`,
        capacity &&
          `${percent(capacity.load, 0)} of the ${Number(capacity.requests_per_s.toPrecision(4))} that can leave`,
      ),
      generates &&
        figure(
          "Output tokens a second",
          decimal(throughput.output_tokens_per_s, 1),
          `${decimal(throughput.total_tokens_per_s, 1)} in and out`,
        ),
      result.slo_attained !== null &&
        figure(
          "Within the limits",
          percent(result.slo_attained),
          result.goodput_requests_per_s !== null &&
            `${Number(result.goodput_requests_per_s.toPrecision(4))} requests a second`,
        ),
      queue.wait_mean_s !== null &&
        figure("Wait until admission", `${time(queue.wait_mean_s)} mean`, `longest ${time(queue.wait_max_s)}`),
      generates &&
        figure(
          "KV cache in use",
          `${percent(kv.use_peak)} at most`,
          `mean ${percent(kv.use_mean)}; ${count(result.preemptions)} preemptions`,
        ),
      figure(
        "Requests counted",
        `${count(requests.finished)} finished`,
        `of ${count(requests.arrived)} that arrived; ${count(result.run.sent)} sent`,
      ),
    ),
  );
}

function latencyTable(result) {
  const right = (text) => ({ text, right: true });
  const columns = ["mean", "p50", "p90", "p95", "p99"];
  const generates = result.conditions.generates !== false;
  const latencies = Object.entries(generates ? LATENCIES : ONE_PASS).filter(([key]) => result[key]);
  const rows = latencies.map(([key, name]) => [
    name,
    ...columns.map((at) => timed(result[key][at], result.intervals[key]?.[at])),
  ]);
  const raw = latencies.map(([key]) => [key, ...columns.map((at) => result[key][at])]);
  return h(
    "section",
    { class: "card" },
    h(
      "div",
      { class: "head" },
      h("h2", {}, "Latency"),
      h(
        "div",
        { class: "quiet" },
        saving("CSV", "Latency", () => save("simulation.csv", csv([["latency", ...columns], ...raw]), "text/csv")),
        saving("JSON", "Simulation", () =>
          save("simulation.json", JSON.stringify(result, null, 2), "application/json"),
        ),
      ),
    ),
    table("With ± the 95 % confidence interval over seeds, where there is one", ["", ...columns.map(right)], rows),
  );
}

/** A time and half its confidence interval, in percent, as the command line prints it. */
function timed(value, interval) {
  if (value === null || !interval || !(value > 0)) return time(value);
  return `${time(value)} ±${percent((interval[1] - interval[0]) / 2 / value)}`;
}
