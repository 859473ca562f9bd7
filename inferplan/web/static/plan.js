// What to buy and how to run it: the cheapest deployment that meets the limits under a load.

import { combobox } from "./combobox.js";
import { copy, fill, h, save, table } from "./dom.js";
import { fields } from "./fields.js";
import { figure } from "./figures.js";
import { Job } from "./job.js";
import { given } from "./simulate.js";
import { TOOLS } from "./state.js";
import { count, decimal, money, percent, quantity, time } from "./units.js";

/** The fields of the form. */
function questions(names) {
  const workloads = [["", "none: lengths and limits below"], ...names.map((name) => [name, name])];
  const own = (values) => !values.workload;
  return [
    {
      key: "load",
      label: "Load",
      kind: "choice",
      options: [
        ["rate", "requests a second"],
        ["users", "users at once"],
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
      key: "users",
      label: "Users, each with one request at a time",
      kind: "number",
      when: (values) => values.load === "users",
    },
    { key: "workload", label: "Workload: lengths and limits by name", kind: "select", options: workloads },
    { key: "prompt", label: "Prompt, tokens", kind: "number", when: own },
    { key: "output", label: "Output, tokens", kind: "number", when: own },
    {
      key: "ttft",
      label: "Limit on the time to first token, ms",
      kind: "number",
      whole: false,
      placeholder: "of the workload, or none",
    },
    {
      key: "tpot",
      label: "Limit on the time per output token, ms",
      kind: "number",
      whole: false,
      placeholder: "of the workload, or none",
    },
    {
      key: "percentile",
      label: "Percent of requests that meet the limits",
      kind: "number",
      whole: false,
      placeholder: "95",
    },
    {
      key: "confidence",
      label: "Size it for",
      kind: "select",
      options: [
        ["", "the prediction itself"],
        ["0.9", "the slow end of its error (9 in 10)"],
      ],
    },
    { key: "quant", label: "Number formats to try", kind: "text", placeholder: "native, fp8, nvfp4" },
    { key: "most", label: "Most accelerators in a replica", kind: "number", placeholder: "8" },
  ];
}

export class PlanTab {
  constructor({ change, lost, catalog, gpus }) {
    this.change = change;
    this.form = fields(questions(catalog.workloads), {
      prefix: "plan",
      read: { ...TOOLS.plan, quant: { read: (text) => TOOLS.plan.quant.read(text.replace(/\s*,\s*/g, ",")) } },
      change,
    });
    this.chips = h("div", { class: "row" });
    const host = h("div", { class: "combobox" });
    const set = combobox(
      host,
      "plan-gpu",
      () => gpus,
      (name) => {
        this.#gpus([...new Set([...this.#chosen(), name])]);
        set("");
      },
    );
    const accelerators = h(
      "div",
      { class: "field wide" },
      h("label", { for: "plan-gpu" }, "Accelerators to consider; without any, the data-centre ones that have a price"),
      host,
      this.chips,
    );
    this.job = new Job({
      kind: "plan",
      word: "Run the plan",
      options: () => this.#options(),
      draw: (result, job) => draw(result, job),
      lost,
    });
    this.heading = h("h2");
    this.node = [
      h(
        "section",
        { class: "card", "aria-label": "Question" },
        h("div", { class: "head" }, this.heading),
        h("div", { class: "form" }, this.form.nodes, accelerators, h("div", { class: "wide" }, this.job.form)),
      ),
      this.job.found,
    ];
  }

  set(state) {
    this.state = state;
    this.heading.textContent = `Plan for ${state.views[state.active].model}`;
    this.form.show(state.plan);
    fill(
      this.chips,
      this.#chosen().map((name) =>
        h(
          "button",
          {
            type: "button",
            "data-key": `gpu-${name}`,
            "aria-label": `Leave out ${name}`,
            onclick: () => this.#gpus(this.#chosen().filter((other) => other !== name)),
          },
          `${name} ×`,
        ),
      ),
    );
  }

  #chosen() {
    return this.state?.plan.gpu?.split(",") ?? [];
  }

  #gpus(names) {
    this.change("gpu", names.length ? names.join(",") : undefined);
  }

  #options() {
    const { plan: asked, views, active } = this.state;
    const load = asked.load ?? "rate";
    if (!asked[load]) return load === "rate" ? "How many requests a second?" : "How many users at once?";
    if (!asked.workload && !(asked.prompt && asked.output))
      return "Choose a workload, or give the tokens of prompt and output.";
    if (!asked.workload && !asked.ttft && !asked.tpot)
      return "A plan needs a limit: on the time to first token, or per output token.";
    const lengths = asked.workload ? { workload: asked.workload } : { prompt: asked.prompt, output: asked.output };
    const limits = {
      ttft: asked.ttft && `${asked.ttft}ms`,
      tpot: asked.tpot && `${asked.tpot}ms`,
      percentile: asked.percentile,
    };
    return given({
      model: views[active].model,
      [load]: asked[load],
      ...lengths,
      ...limits,
      gpu: asked.gpu,
      quant: asked.quant,
      most: asked.most,
      confidence: asked.confidence,
    });
  }
}

const divided = (row) =>
  ["tp", "pp", "ep", "dp"]
    .filter((key) => row[key] > 1)
    .map((key) => `${key} ${row[key]}`)
    .join(", ");
const fleet = (row) =>
  `${count(row.devices)} × ${row.gpu}${row.prefill_gpu ? ` and ${count(row.prefill_devices)} × ${row.prefill_gpu} for prompts` : ""}`;
const price = (row) =>
  row.hours === null ? `${money(row.cost, row.currency, 2)} / hour` : money(row.cost, row.currency);
const BINDING = {
  ttft: "time to first token",
  tpot: "time per output token",
  e2el: "end-to-end latency",
  slots: "engine slots",
  memory: "memory",
  prefill: "prompts",
  nothing: "nothing",
};
const RULED_OUT = {
  ttft: "time to first token over the limit",
  tpot: "time per output token over the limit",
  e2el: "end-to-end latency over the limit",
  weights: "the weights do not fit",
  disaggregated: "no pair of pools meets the limits",
  memory: "the cache does not hold the requests",
  prefill: "the token budget is too small for the prompts",
  slots: "more requests than the engine admits",
  impossible: "the model cannot be divided that way, or the device lacks an arithmetic or a figure",
  drafts: "the draft model cannot be divided that way (tried without it)",
  unmeasured: "no constants on file: at the bare roofline they would look better than they are",
};

function draw(result, job) {
  return [headline(result, job), options(result), loads(result)];
}

function headline({ plan, cost, question, energy }, job) {
  const limit = (key) => (question.slo[key] == null ? "no limit" : `limit ${time(question.slo[key], 3)}`);
  const at = `${Number(question.percentile)}th percentile, simulated`;
  const carries =
    plan.capacity &&
    `carries ${plan.capacity.requests_per_s == null ? `${count(plan.capacity.users)} users` : `${Number(plan.capacity.requests_per_s.toPrecision(3))} requests a second`}${plan.capacity.at_least ? " at least" : ""}`;
  const slow = {
    true: "keeps the limits at the slow end of the error too",
    false: "misses a limit at the slow end of the error",
    null: "no error band is known",
  }[plan.meets_at_the_slow_end];
  return h(
    "section",
    { class: "card", id: "plan-answer" },
    h(
      "div",
      { class: "title" },
      h("h2", {}, `${fleet(plan)} in ${plan.precision}`),
      h("span", { class: "soft" }, question.demand),
    ),
    h(
      "dl",
      { class: "answer" },
      figure(
        "Cost",
        price(plan),
        cost.per_month != null && `${decimal(cost.per_month, 0)} ${cost.currency} a month of 730 hours`,
        cost.per_million_output_tokens_whole_bill != null &&
          `${money(cost.per_million_output_tokens_whole_bill, cost.currency)} a million output tokens, whole bill on them`,
      ),
      figure("Time to first token", time(plan.ttft_s), at, limit("ttft_s")),
      figure("Time per output token", time(plan.tpot_s), at, limit("tpot_s")),
      figure(
        "Replicas",
        `${count(plan.replicas)}`,
        divided(plan) || "one accelerator each",
        `${plan.engine}, ${count(plan.token_budget)} tokens a step, ${count(plan.max_num_seqs)} sequences`,
      ),
      figure("Breaks first", BINDING[plan.binding] ?? plan.binding, carries, slow),
      figure(
        "What is bought",
        cost.instance ? `${count(cost.instances)} × ${cost.instance}` : `${count(cost.devices_bought)} single`,
        `${cost.price_term}, ${[cost.price_source, cost.price_date].filter(Boolean).join(", ")}`,
        cost.devices_idle ? `${count(cost.devices_idle)} accelerators idle` : "",
      ),
      energy && figure("Power", quantity(energy.power_w, "W"), energy.scope),
    ),
    toTake(plan, job),
  );
}

/** What to take along: the command that starts it, the report, the record. */
function toTake(plan, job) {
  return [
    plan.launch &&
      h(
        "div",
        { class: "code" },
        h(
          "div",
          { class: "head" },
          h("h3", {}, "Start each replica"),
          h(
            "button",
            { type: "button", "data-key": "launch", onclick: (event) => copy(plan.launch, event.currentTarget) },
            "Copy start command",
          ),
        ),
        h("pre", {}, plan.launch),
      ),
    h(
      "div",
      { class: "row" },
      job.report &&
        h("a", { href: `/api/report/${job.id}`, target: "_blank", rel: "noopener" }, "Open the report to send on"),
      h(
        "button",
        {
          type: "button",
          "data-key": "plan-json",
          onclick: () => save("plan.json", JSON.stringify(job.result, null, 2), "application/json"),
        },
        "Save the plan as JSON",
      ),
    ),
  ];
}

const right = (text) => ({ text, right: true });

function options(result) {
  const other = result.at_the_other_confidence;
  const rows = [
    ["the plan", result.plan],
    ...(other ? [[`for a confidence of ${other.confidence}`, other]] : []),
    ...(result.measured_alternative ? [["the cheapest of a measured kind", result.measured_alternative]] : []),
    ...result.alternatives.map((row, index) => [`alternative ${index + 1}`, row]),
  ].map(([name, row]) => [
    name,
    fleet(row),
    divided(row) || "–",
    row.precision,
    time(row.ttft_s, 3),
    time(row.tpot_s, 3),
    price(row),
  ]);
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "Beside it"),
    table(
      "Each of them meets the limits, by simulation",
      [
        "",
        "Accelerators",
        "Division",
        "Format",
        right("Time to first token"),
        right("Time per output token"),
        right("Cost"),
      ],
      rows,
    ),
  );
}

function loads(result) {
  const rows = result.sensitivity.map((row) => [
    percent(row.load, 0),
    time(row.ttft_s, 3),
    time(row.tpot_s, 3),
    row.meets ? "yes" : "no",
    row.replicas_needed == null ? "–" : count(row.replicas_needed),
  ]);
  const out = Object.entries(result.rejected).map(([reason, candidates]) => [
    RULED_OUT[reason] ?? reason,
    count(candidates),
  ]);
  return h(
    "div",
    { class: "pair" },
    h(
      "section",
      { class: "card" },
      h("h2", {}, "The same replicas under other loads"),
      table(
        "Simulated",
        [
          "Load",
          right("Time to first token"),
          right("Time per output token"),
          "Meets the limits",
          right("Replicas it would take"),
        ],
        rows,
      ),
    ),
    h(
      "section",
      { class: "card" },
      h("h2", {}, `${count(result.candidates.evaluated)} candidates`),
      table("Ruled out, under the first reason", ["Reason", right("Candidates")], out),
    ),
  );
}
