// A load that rises and falls: what each way of scaling replicas costs, and whom it serves late.

import { told } from "./behind.js";
import { choosable, csv, h, heading, save, saving, table } from "./dom.js";
import { stated } from "./explain.js";
import { fields, limitOptions, limits } from "./fields.js";
import { COST_PAGE, answer, figure, purchase } from "./figures.js";
import { Job } from "./job.js";
import { Plotted } from "./pictures.js";
import { deployment, given } from "./simulate.js";
import { TOOLS } from "./state.js";
import { title } from "./controls.js";
import { count, decimal, money, percent, time } from "./units.js";

const HOUR = 3600;
const NAMES = { ttft_s: "Time to first token", tpot_s: "Time per output token", e2el_s: "End-to-end latency" };
/** What each policy does with replicas. */
const MEANING = {
  static: "The replicas of the peak run all day.",
  scheduled: "Replicas follow the profile, and each is ordered a start-up time before it is needed.",
  reactive: "Kubernetes' autoscaler follows the requests that it sees.",
};

/** The fields of the form. */
function questions({ workloads, profiles }) {
  const named = (first, names) => [["", first], ...names.map((name) => [name, name])];
  const scaled = (values) => values.policies !== "static";
  const number = (key, label, placeholder, more = {}) => ({ key, label, kind: "number", whole: false, placeholder, ...more });
  return [
    { key: "profile", label: "Profile of the load", kind: "select", options: named("stated here", profiles) },
    {
      key: "rates",
      label: "Requests per second from each time on",
      kind: "text",
      placeholder: "00:00=0.2,08:00=2,18:00=1",
      when: (values) => !values.profile,
    },
    number("peak", "Scale to a peak of requests per second", "as it is"),
    { key: "workload", label: "Workload: lengths and limits by name", kind: "select", options: named("none: prompt and output of the load", workloads) },
    ...limits("of the workload, or none"),
    number("percentile", "Percent of requests that meet the limits", "95"),
    number("cold", "Seconds from the order of a replica until it takes requests", "", { when: scaled }),
    {
      key: "policies",
      label: "Policies to compare",
      kind: "select",
      options: [["", "all three"], ...["static,scheduled", "static,reactive", "static"].map((one) => [one, one.replace(",", " and ")])],
    },
    number("utilisation", "Load of a replica, percent of its capacity", "80"),
    number("least", "Fewest replicas", "1", { whole: true, when: scaled }),
    number("hours", "Hours to simulate", "24"),
    number("seed", "Seed of lengths and arrivals", "0", { whole: true }),
  ];
}

export class DayTab {
  constructor({ change, apply, lost, catalog }) {
    this.silent = new Set(catalog.models.filter((model) => model.generates === false).map((model) => model.name));
    this.form = fields(questions(catalog), { prefix: "day", read: TOOLS.day, change });
    this.job = new Job({
      kind: "day",
      word: "Run the day",
      options: () => this.#options(),
      draw: (result, job) => draw({ result, job, words: catalog.words, chosen: this.state?.day.show, change }),
      lost,
      apply,
    });
    this.heading = h("h2");
    this.node = [
      h(
        "section",
        { class: "card", "aria-label": "Day" },
        h("div", { class: "head" }, this.heading),
        h("div", { class: "form" }, this.form.nodes, h("div", { class: "wide" }, this.job.form)),
        h("p", { class: "soft" }, "Recorded logs, classes of traffic, spot, failures, energy and other designs: ", h("code", {}, "inferplan day --help"), ", ", h("code", {}, "docs/day.md"), "."),
      ),
      this.job.found,
    ];
  }

  set(state) {
    this.state = state;
    this.heading.textContent = `A day of ${title(state.views[state.active])}`;
    this.form.show(state.day);
  }

  #options() {
    const { day: asked, views, active } = this.state;
    const view = views[active];
    const scaled = asked.policies !== "static";
    const lengths = asked.workload
      ? { workload: asked.workload }
      : { prompt: view.prompt, output: this.silent.has(view.model) ? undefined : view.output };
    return given({
      ...deployment(view),
      price: view.price && `${view.gpu}=${view.price}`,
      profile: asked.profile ?? asked.rates,
      peak: asked.peak,
      ...lengths,
      ...limitOptions(asked),
      percentile: asked.percentile,
      "cold-start": scaled && asked.cold ? `${asked.cold}s` : undefined,
      policy: asked.policies,
      utilisation: asked.utilisation && asked.utilisation / 100,
      "min-replicas": scaled ? asked.least : undefined,
      duration: asked.hours && `${asked.hours}h`,
      seed: asked.seed,
    });
  }
}

/** The cheapest policy that keeps the limits; where none does, the one with the fewest late requests. */
function best({ policies }) {
  const least = (rows, key) => rows.reduce((one, other) => (other[key] < one[key] ? other : one));
  const kept = policies.filter((one) => one.meets);
  return kept.length ? least(kept, "cost_per_day") : least(policies, "missed");
}

/** The nodes of a result. */
function draw(about) {
  return [headline(about), policyTable(about), overTheDay(about)];
}

const perDay = (row) => `${money(row.cost_per_day, row.currency, 2)} / day`;
const allowed = ({ percentile }) => 1 - percentile / 100;

function headline(about) {
  const { result, job } = about;
  const { profile, replica } = result;
  const row = best(result);
  const kept = row.meets ? "costs least within the limits" : "is late least; no policy keeps the limits";
  const opened = (name, text, names, rows, ...notes) =>
    figure(name, stated(text, name, () => told({ ...about, job }, names, rows.filter(([, value]) => value))), ...notes);
  const bill = [
    ...purchase(replica.bill),
    ["Replicas are paid for", `${decimal(row.gpu_hours, 1)} accelerator-hours per day, from the order of each until its last request is done`],
    COST_PAGE,
  ];
  return h(
    "section",
    { class: "card", id: "day-answer" },
    h("div", { class: "title" }, h("h2", {}, `${row.policy} ${kept}`), h("span", { class: "soft" }, MEANING[row.policy] ?? "")),
    answer(
      opened("Cost per day", money(row.cost_per_day, row.currency, 2), [], bill, row.saving > 0 ? `${percent(row.saving)} less than ${result.policies[0].policy}` : ""),
      opened(
        "Late requests",
        percent(row.missed, 2),
        ["SLO"],
        [...limitRows(result), ["Late", "over a limit, or never finished"]],
        `${percent(allowed(result))} are allowed`,
      ),
      opened("Replicas at most", count(row.peak_replicas), ["replica"], [["Flags", `--max-num-seqs ${replica.max_num_seqs} --max-num-batched-tokens ${replica.max_num_batched_tokens}`]], `${percent(row.utilisation, 0)} used`),
      opened(
        "A replica carries",
        `${Number(replica.requests_per_s.toPrecision(3))} requests/s`,
        ["replica"],
        [["Within", limitRows(result).map(([name, limit]) => `${name} ${limit}`).join(", ")], ["Loaded to", percent(replica.utilisation, 0)]],
        `loaded to ${percent(replica.utilisation, 0)} of it`,
      ),
      opened("Peak of the load", `${Number(profile.peak_requests_per_s.toPrecision(4))} requests/s`, [], [["Requests", count(profile.requests)], ["Profile", profile.name], ["Source", profile.source]], `mean ${Number(profile.mean_requests_per_s.toPrecision(3))}, profile ${profile.name}`),
    ),
  );
}

const limitRows = ({ slo, percentile }) =>
  Object.entries(slo ?? {}).map(([key, limit]) => [`Limit on ${NAMES[key].toLowerCase()}`, `${time(limit, 3)} at p${Number(percentile)}`]);

function policyTable({ result }) {
  const right = (text) => ({ text, right: true });
  const shown = Object.keys(NAMES).filter((key) => result.slo?.[key] != null);
  const at = `p${Number(result.percentile)}`;
  const chosen = best(result);
  const rows = result.policies.map((row) => [
    row.policy + (row === chosen && row.meets ? "\u00a0★" : ""),
    perDay(row),
    row.saving === null || row === result.policies[0] ? "–" : percent(row.saving),
    `${percent(row.missed, 2)}${row.meets ? "" : " !"}`,
    count(row.peak_replicas),
    decimal(row.gpu_hours, 1),
    percent(row.utilisation, 0),
    ...shown.map((key) => (row[key] === null ? "–" : time(row[key], 3))),
  ]);
  const keys = ["policy", "cost_per_day", "currency", "saving", "missed", "meets", "peak_replicas", "gpu_hours", "utilisation", ...shown];
  const raw = result.policies.map((row) => keys.map((key) => row[key]));
  return h(
    "section",
    { class: "card" },
    heading(
      h("h2", {}, "Policies"),
      saving("CSV", "Policies", () => save("day.csv", csv([keys, ...raw]), "text/csv")),
      saving("JSON", "Day", () => save("day.json", JSON.stringify(result, null, 2), "application/json")),
    ),
    table(
      `★ the cheapest within the limits; ! more than ${percent(allowed(result))} are late. All serve the same requests.`,
      ["policy", right("Cost"), right("Saving"), right("Late requests"), right("Replicas at most"), right("Accelerator-hours"), right("Used"), ...shown.map((key) => right(`${NAMES[key]}, ${at}`))],
      rows,
    ),
  );
}

/** Load and replicas over the day, late requests by hour, under the policy that is chosen. */
function overTheDay({ result, job, chosen, change }) {
  const { behind } = job;
  const names = result.policies.map((one) => one.policy);
  const first = names.includes(chosen) ? chosen : best(result).policy;
  const pictures = [new Plotted("day-load", "Load and replicas", "day"), new Plotted("day-late", "Late requests by hour", "day")];
  const show = (name) => {
    loadPicture(pictures[0], result, behind, name);
    latePicture(pictures[1], result, name);
  };
  const card = { id: "day-over", title: "Over the day", list: "day-show", label: "Policy", names, chosen: first, show };
  const nodes = pictures.map((picture) => picture.node);
  return choosable({ ...card, change: (name) => change("show", name) }, h("div", { class: "rest" }, nodes));
}

/** Hours since midnight as a clock: 6.5 is 06:30. */
const clock = (hours) => {
  const minutes = Math.round(hours * 60);
  return [Math.floor(minutes / 60), minutes % 60].map((part) => String(part).padStart(2, "0")).join(":");
};
const TICKS = [1 / 60, 1 / 12, 1 / 6, 0.25, 0.5, 1, 2, 3, 4, 6, 12, 24];
const axis = (end) => ({ label: "time of the day", format: clock, every: TICKS, range: () => [0, end] });
/** Values that hold until the next, and to the end. */
const held = (values) => [...values, values.at(-1)];

function loadPicture(picture, result, { start_s: start, end_s: end, requests_per_s: load, replicas }, policy) {
  const { replica } = result;
  const each = replica.requests_per_s;
  const paid = replicas[policy];
  const at = [...start, end].map((second) => second / HOUR);
  const lines = [
    { name: "requests per second that come", colour: "a", values: held(load), steps: true },
    { name: `replicas paid for, ${policy}, by what they carry`, colour: "b", values: held(paid.map((some) => some * each)), steps: true },
  ];
  const most = 1.08 * Math.max(...lines.flatMap((line) => line.values));
  const every = Math.max(1, Math.round(HOUR / 4 / ((end - start[0]) / start.length)));
  const row = (index) => [clock(at[index]), decimal(load[index], 2), decimal(paid[index], 2), decimal(paid[index] * each, 2)];
  const said = (index) => Math.min(index, start.length - 1);
  picture.show(
    {
      x: axis(end / HOUR),
      y: {
        format: (value) => decimal(value, value % 1 ? 1 : 0),
        range: () => [0, most],
        other: { every: each, format: (value) => count(Math.round(value / each)) },
      },
      at,
      lines,
      say: (index) => `${clock(at[index])}: ${row(said(index))[1]} requests/s, ${row(said(index))[2]} replicas`,
      rest: "Point at the curve to read it.",
    },
    {
      caption: `Left: requests per second; right: replicas. One carries ${Number(each.toPrecision(3))} requests per second within the limits and is loaded to ${percent(replica.utilisation, 0)} of that; where the load is above the replicas, requests come late. A replica counts from its order on, and serves a start-up time later.`,
      columns: ["from", "requests per second", "replicas paid for", "requests per second that they carry"],
      rows: start.flatMap((_, index) => (index % every ? [] : [row(index)])),
      all: start.map((second, index) => [second, load[index], paid[index], paid[index] * each]),
      heads: ["start_s", "requests_per_s", "replicas", "carried_requests_per_s"],
      legend: lines.map((line, index) => ({ name: line.name, of: `of-${index}` })),
      about: `${result.model} on ${result.gpu}, ${policy}`,
    },
  );
}

function latePicture(picture, result, policy) {
  const { hours } = result.policies.find((one) => one.policy === policy);
  const end = result.profile.simulated_s / HOUR;
  const most = allowed(result);
  const late = hours.map((one) => one.missed);
  const lines = [
    { name: `late requests, ${policy}`, colour: "a", values: held(late), steps: true },
    { name: "allowed over the whole day", colour: "bad", dash: [6, 4], values: held(late).map(() => most) },
  ];
  picture.show(
    {
      x: axis(end),
      y: { format: (value) => percent(value, value * 100 % 1 ? 1 : 0), range: () => [0, 1.1 * Math.max(most, ...late, 0.001)] },
      at: [...hours.map((one) => one.hour), end],
      lines,
      say: (index) => {
        const one = hours[Math.min(index, hours.length - 1)];
        return `${clock(one.hour)}: ${one.missed === null ? "no requests" : `${percent(one.missed, 2)} late`}`;
      },
      rest: "Point at the curve to read it.",
    },
    {
      caption: "Share of the requests of each hour that are over a limit or never finish.",
      columns: ["hour", "requests per second", "replicas paid for", "replicas needed", "late"],
      rows: hours.map((one) => [
        clock(one.hour),
        decimal(one.requests_per_s, 2),
        decimal(one.replicas, 2),
        count(one.replicas_needed),
        one.missed === null ? "–" : percent(one.missed, 2),
      ]),
      all: hours.map((one) => [one.hour, one.requests_per_s, one.replicas, one.replicas_needed, one.missed]),
      heads: ["hour", "requests_per_s", "replicas", "replicas_needed", "missed"],
      legend: [{ name: lines[0].name, of: "of-0" }, { name: lines[1].name, of: "wrong-line" }],
      about: `${result.model} on ${result.gpu}, ${policy}`,
    },
  );
}
