// What to buy and how to run it: the cheapest deployment that meets the limits under a load.

import { Simulated, told } from "./behind.js";
import { breaking, costs, frontier, safety } from "./choices.js";
import { combobox } from "./combobox.js";
import { copy, fill, h, save, table } from "./dom.js";
import { number, stated } from "./explain.js";
import { fields, limitOptions, limits, load, loadOptions } from "./fields.js";
import { COST_PAGE, answer, bill, figure, purchase, sold } from "./figures.js";
import { Hosted } from "./hosted.js";
import { Job } from "./job.js";
import { given } from "./simulate.js";
import { TOOLS } from "./state.js";
import { bytes, count, decimal, money, percent, quantity, time } from "./units.js";

/** The fields of the form. */
function questions(names) {
  const workloads = [["", "none: lengths and limits below"], ...names.map((name) => [name, name])];
  const own = (values) => !values.workload;
  return [
    ...load("Load", "users"),
    { key: "workload", label: "Workload: lengths and limits by name", kind: "select", options: workloads },
    { key: "prompt", label: "Prompt, tokens", kind: "number", when: own },
    { key: "output", label: "Output, tokens", kind: "number", when: own },
    ...limits("of the workload, or none"),
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
        ["", "an 80 % chance of keeping each limit"],
        ["0.5", "the prediction itself"],
        ["0.9", "the slow end of its error (9 in 10)"],
      ],
    },
    { key: "quant", label: "Number formats to try", kind: "text", placeholder: "native, fp8, w4a16" },
    { key: "most", label: "Most accelerators per replica", kind: "number", placeholder: "8" },
  ];
}

export class PlanTab {
  constructor({ change, api, lost, catalog, gpus }) {
    this.change = change;
    this.silent = new Set(catalog.models.filter((model) => model.generates === false).map((model) => model.name));
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
      h("label", { for: "plan-gpu" }, "Accelerators to consider; left empty, all data-centre ones with a price"),
      host,
      this.chips,
    );
    this.job = new Job({
      kind: "plan",
      word: "Run the plan",
      options: () => this.#options(),
      draw: (result, job) => this.#draw(result, job, catalog.words),
      lost,
    });
    this.hosted = new Hosted("plan", api);
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
    this.form.show({ load: "rate", ...state.plan });
    this.#compare();
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

  #draw(result, job, words) {
    this.result = result;
    this.#compare();
    return draw(result, job, words).toSpliced(2, 0, this.hosted.node);
  }

  #compare() {
    if (!this.result) return;
    const { cost, question, plan } = this.result;
    const { prompt_tokens: prompt, output_tokens: output } = question;
    const { times_the_load: times = 1, at_least: open = false } = plan.capacity ?? {};
    const most = open ? Infinity : plan.requests_per_s * Math.max(plan.capacity ? times * question.utilisation : 1, 1);
    const tokens = { prompt, output: plan.tpot_s === null ? 0 : output };
    this.hosted.show(this.state?.api, cost, { ...tokens, of: "under this load", most });
  }

  #chosen() {
    return this.state?.plan.gpu?.split(",") ?? [];
  }

  #gpus(names) {
    this.change("gpu", names.length ? names.join(",") : undefined);
  }

  #options() {
    const { plan: asked, views, active } = this.state;
    const load = loadOptions(asked);
    if (typeof load === "string") return load;
    if (!asked.workload && !(asked.prompt && (asked.output || this.silent.has(views[active].model))))
      return "Choose a workload, or give the tokens of prompt and output.";
    if (!asked.workload && !asked.ttft && !asked.tpot && !asked.e2e)
      return "A plan needs a limit: on the time to first token, the time per output token, or the whole answer.";
    const lengths = asked.workload ? { workload: asked.workload } : { prompt: asked.prompt, output: asked.output };
    return given({
      model: views[active].model,
      ...load,
      ...lengths,
      ...limitOptions(asked),
      percentile: asked.percentile,
      gpu: asked.gpu,
      quant: asked.quant,
      most: asked.most,
      confidence: asked.confidence,
    });
  }
}

const degrees = (row) => ["tp", "pp", "ep", "dp"].filter((key) => row[key] > 1);
const divided = (row) =>
  degrees(row)
    .map((key) => `${key} ${row[key]}`)
    .join(", ");
const fleet = (row) =>
  `${count(row.devices)} × ${row.gpu}${row.prefill_gpu ? ` and ${count(row.prefill_devices)} × ${row.prefill_gpu} for prompts` : ""}`;
const price = (row) =>
  row.hours === null ? `${money(row.cost, row.currency, 2)} / hour` : money(row.cost, row.currency);

/** Which of the plan's own terms (job.behind.terms) belong to a figure. */
const TERMS = {
  cost: /a million/,
  replicas: /replica/,
  ttft_s: /requests in a replica/,
  tpot_s: /time per output token|round|operator/,
  e2el_s: /requests in a replica|time per output token/,
};

function draw(result, job, words) {
  const at = `p${result.question.percentile}`;
  const { simulation } = result.plan;
  const about = { result, job, words, at, behind: job.behind };
  about.run = simulation && new Simulated(simulation, { words, job, view: job.behind.view });
  return [
    headline(about),
    pair(costsOf(about), safetyOf(about)),
    pair(frontierOf(about), breaksOf(about)),
    loads(about),
  ];
}

/** Terms of the plan as facts: the value, the same in numbers, the formula. */
function termRows({ behind }, which) {
  const own = behind.terms.filter((term) => TERMS[which].test(term.name));
  const rows = own.map(({ name, value, numbers, formula }) => [
    name,
    numbers === value
      ? value
      : h("span", {}, `${value} = `, h("code", {}, numbers), ", which is ", h("code", {}, formula)),
  ]);
  return rows.length && which !== "cost" ? [...rows, ["What these are", behind.screening]] : rows;
}

/** A latency of the plan itself: simulated, with the limit and the terms of the closed form. */
function latency(about, name, key) {
  const { plan, question } = about.result;
  const limit = question.slo[key] == null ? "no limit" : `limit ${time(question.slo[key], 3)}`;
  const rows = () => [["Limit", limit.replace("limit ", "")], ...termRows(about, key)];
  const text = time(plan[key]);
  return figure(
    name,
    about.run
      ? about.run.latency(text, name, { key, at: about.at, rows })
      : stated(text, name, () => told(about, [], rows())),
    `${Number(question.percentile)}th percentile, ${about.run ? "simulated" : "closed form"}`,
    limit,
  );
}

/** Those that a plan has, by key: of a model that answers in one pass, or with one token, one. */
function latencies({ result: { plan, question } }) {
  if (plan.tpot_s === null) return [["e2el_s", "Latency"]];
  return [
    ["ttft_s", "Time to first token"],
    ["tpot_s", "Time per output token"],
    ...(question.slo.e2el_s == null ? [] : [["e2el_s", "End-to-end latency"]]),
  ];
}

/** What a row costs: its bill. `name` says of which row. */
function priced(about, row, name, bills) {
  const rows = () => [
    ...bills.flatMap((one) => [...purchase(one), ["Per hour", money(one.per_hour, one.currency)]]),
    row.hours !== null && ["The whole job", `${decimal(row.hours, 2)} hours: ${price(row)}`],
    COST_PAGE,
  ];
  return row.cost === null ? "no price" : stated(price(row), name, () => rows().filter(Boolean));
}

/** What users make of a load: requests per second, and how many wait; empty for another load. */
const asPeople = (plan) =>
  plan.users_waiting == null || plan.people
    ? ""
    : `: ${Number(plan.requests_per_s.toPrecision(4))} requests per second, ${count(Math.round(plan.users_waiting))} users waiting at a time`;

function headline(about) {
  const { result, job, behind } = about;
  const { plan, question } = result;
  return h(
    "section",
    { class: "card", id: "plan-answer" },
    h(
      "div",
      { class: "title" },
      h("h2", {}, `${fleet(plan)} in ${plan.precision}`),
      h("span", { class: "soft" }, question.demand + asPeople(plan)),
    ),
    cautions(result),
    answer(
      cost(about),
      latencies(about).map(([key, name]) => latency(about, name, key)),
      breaks(plan, behind),
      figure(
        "Replicas",
        stated(count(plan.replicas), "Replicas", () =>
          told(about, ["replica", "spare", ...degrees(plan)], [
            ["Accelerators", fleet(plan)],
            ...termRows(about, "replicas"),
          ]),
        ),
        divided(plan) || "one accelerator each",
        `${plan.engine}, ${count(plan.token_budget)} tokens per step, ${count(plan.max_num_seqs)} sequences`,
      ),
      behind.memory && memory(behind.memory),
      bought(about),
      result.energy && power(about),
    ),
    toTake(plan, job),
  );
}

/** What has to be known before the figures: that their error is not known, another format, the chance of a miss. */
function cautions({ plan, native_alternative: native }) {
  const said = [
    plan.error_unknown && plan.error_unknown[0].toUpperCase() + plan.error_unknown.slice(1) + ".",
    plan.confidence &&
      `Each limit is kept with a chance of ${percent(plan.confidence, 0)}` +
        (plan.miss ? `; under the load itself the chance of a miss is at most ${percent(plan.miss.chance_at_most, 0)}.` : "."),
    plan.quality &&
      `In ${plan.quality.quant}: ${plan.quality.said}.` +
        (plan.quality.checkpoint ? ` Checkpoint: ${plan.quality.checkpoint}.` : "") +
        (native ? ` In the checkpoint's own format: ${fleet(native)} at ${price(native)}.` : ""),
  ];
  return said.filter(Boolean).map((line) => h("p", { class: "soft" }, line));
}

const memory = ({ view, bytes: size, usable_bytes: usable }) =>
  figure(
    "Memory of one accelerator",
    number(bytes(size), { term: "memory.total", view, name: "Memory of one accelerator" }),
    usable && `of ${bytes(usable)}`,
    `with ${count(view.batch)} requests, as many as a replica has at its capacity`,
  );

function breaks(plan, behind) {
  const { capacity } = plan;
  const carries =
    capacity &&
    `carries ${capacity.requests_per_s == null ? `${count(capacity.users)} users` : `${Number(capacity.requests_per_s.toPrecision(3))} requests per second`}${capacity.sessions_per_s == null ? "" : ` (${Number(capacity.sessions_per_s.toPrecision(3))} sessions)`}${capacity.at_least ? " at least" : ""}`;
  const slow = {
    true: "keeps the limits at the slow end of the error too",
    false: "misses a limit at the slow end of the error",
    null: "no error band is known",
  }[plan.meets_at_the_slow_end];
  return figure("Breaks first", behind.bottleneck, carries, slow);
}

function cost(about) {
  const { cost: paid, plan } = about.result;
  if (!paid) return figure("Cost", "no price");
  return figure(
    "Cost",
    stated(price(plan), "Cost", () => [
      ...bill(paid, "at the load that is served"),
      ...(plan.hours === null ? [] : [["The whole job", `${decimal(plan.hours, 2)} hours: ${price(plan)}`]]),
      ...termRows(about, "cost"),
    ]),
    paid.per_month != null && `${decimal(paid.per_month, 0)} ${paid.currency} per month of 730 hours`,
    paid.per_million_output_tokens_whole_bill != null &&
      `${money(paid.per_million_output_tokens_whole_bill, paid.currency)} per million output tokens, counting input as free`,
  );
}

function bought({ result: { cost: paid }, behind }) {
  if (!paid) return false;
  return figure(
    "What you buy",
    stated(sold(paid), "What you buy", () => behind.bills.plan.flatMap(purchase).concat([COST_PAGE])),
    `${paid.price_term}, ${[paid.price_source, paid.price_date].filter(Boolean).join(", ")}`,
    paid.devices_idle ? `${count(paid.devices_idle)} accelerators idle` : "",
  );
}

function power(about) {
  const { energy } = about.result;
  const text = quantity(energy.power_w, "W");
  const rows = [
    ["Value", text],
    ["Of", energy.scope],
    ["Per token, in or out", quantity(energy.per_token_j, "J")],
  ];
  return figure("Power", stated(text, "Power", () => told(about, ["TDP"], rows)), energy.scope);
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
        plan.launch_note && h("p", { class: "soft" }, plan.launch_note),
      ),
    h(
      "div",
      { class: "row" },
      job.report &&
        h("a", { href: `/api/report/${job.id}`, target: "_blank", rel: "noopener" }, "Open the report to share"),
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

/** The rows beside the plan: a name, the row of the JSON, its bills. */
function beside(result, bills) {
  const { plan, at_the_other_confidence: other, measured_alternative: measured, alternatives } = result;
  const { native_alternative: native, unknown_alternative: unknown } = result;
  return [
    ["the plan", plan, bills.plan],
    ...(other ? [[`for a confidence of ${other.confidence}`, other, bills.at_the_other_confidence]] : []),
    ...(measured ? [["the cheapest of a measured kind", measured, bills.measured_alternative]] : []),
    ...(native ? [["in the checkpoint's own format", native, bills.native_alternative]] : []),
    ...(unknown ? [["cheaper, with an unknown error", unknown, bills.unknown_alternative]] : []),
    ...alternatives.map((row, index) => [`alternative ${index + 1}`, row, bills.alternatives[index]]),
  ];
}

/** A simulated latency that stands in a table: `of` is what was simulated, in words. */
function cell(about, key, value, { name, of }) {
  if (value == null) return "–";
  const word = { ttft_s: "TTFT", tpot_s: "TPOT", e2el_s: "end-to-end" }[key];
  const [, what] = latencies(about).find(([one]) => one === key);
  const limit = about.result.question.slo[key];
  return stated(time(value, 3), `${what}, ${name}`, () =>
    told(about, [word, about.at, "simulated"], [
      ["Value", time(value)],
      ["Limit", limit == null ? "none" : time(limit, 3)],
      ["Of", of],
    ]),
  );
}

/** Cards beside each other. */
const pair = (...cards) => h("div", { class: "pair" }, cards);

/** A number format in a word where all parts have it. */
const inShort = (precision) => /^weights (\S+), activations \1$/.exec(precision)?.[1] ?? precision;

function costsOf(about) {
  const found = beside(about.result, about.behind.bills);
  const rows = found.map(([name, row, bills]) => {
    const of = [fleet(row), divided(row), row.precision, about.result.question.demand].filter(Boolean).join(", ");
    return [
      name,
      priced(about, row, `Cost, ${name}`, bills),
      fleet(row),
      divided(row) || "–",
      inShort(row.precision),
      ...latencies(about).map(([key]) => cell(about, key, row[key], { name, of })),
    ];
  });
  const columns = [
    { text: "option" },
    right("Cost"),
    { text: "Accelerators" },
    { text: "Division" },
    { text: "Format" },
    ...latencies(about).map(([, what]) => right(what)),
  ];
  const named = found.map(([name, row]) => ({ ...row, name, fleet: fleet(row), format: inShort(row.precision) }));
  return costs(named, { columns, rows });
}

function safetyOf(about) {
  const { confidence_curve: curve, plan } = about.result;
  const rows = curve.map((step) => {
    if (step.cost === null) return [String(step.confidence), "–", "no option meets the limits", ""];
    const shown = `${step.exact ? "" : "at most "}${money(step.cost, step.currency, 2)} / hour`;
    const facts = () => [
      ["Each limit is kept with a chance of", percent(step.confidence, 0)],
      ["Steps take", `${decimal(step.step_times, 2)} times as long as predicted`],
      ["Devices", `${count(step.devices)} × ${step.gpu}`],
      ["Format", step.quant ?? "the checkpoint's own"],
    ];
    return [
      String(step.confidence),
      stated(shown, `Cost at a confidence of ${step.confidence}`, facts),
      `${count(step.devices)} × ${step.gpu}`,
      step.quant ?? "native",
    ];
  });
  return safety(curve, plan.confidence, rows);
}

const frontierOf = ({ result: { plan, question }, behind }) =>
  frontier({ ...behind, tpot: question.slo.tpot_s, gpu: plan.gpu });

function breaksOf(about) {
  const { plan, question, sensitivity } = about.result;
  const runs = [...sensitivity, { ...plan, load: 1 }].sort((left, other) => left.load - other.load);
  return breaking({
    runs: runs.map((run) => (run.verdict === "overloaded" ? { load: run.load } : run)),
    limits: latencies(about).map(([key, name]) => ({ key, name, limit: question.slo[key] })),
    capacity: plan.capacity?.times_the_load,
  });
}

function loads(about) {
  const { result, behind } = about;
  const rows = result.sensitivity.map((row) => {
    const name = `at ${percent(row.load, 0)} of the load`;
    const of = `${fleet(result.plan)} ${name}: ${row.verdict}`;
    return [
      percent(row.load, 0),
      ...latencies(about).map(([key]) => cell(about, key, row[key], { name, of })),
      row.meets ? "yes" : "no",
      row.replicas_needed == null ? "–" : count(row.replicas_needed),
    ];
  });
  const out = Object.entries(result.rejected).map(([reason, candidates]) => [behind.reasons[reason], count(candidates)]);
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
          ...latencies(about).map(([, what]) => right(what)),
          "Meets the limits",
          right("Replicas needed"),
        ],
        rows,
      ),
    ),
    h(
      "section",
      { class: "card" },
      h("h2", {}, `${count(result.candidates.evaluated)} candidates`),
      table("Ruled out, by first reason", ["Reason", right("Candidates")], out),
    ),
  );
}
