// The pictures of a plan: what each way to buy costs, what more certainty costs, the frontier, what breaks first.

import { h } from "./dom.js";
import { Drawn, Plotted } from "./pictures.js";
import { colour } from "./scene.js";
import { count, decimal, money, percent, shortTime, time } from "./units.js";

const LETTER = 6.8;
const [ROW, LINE, BAR] = [26, 18, 16];

/** Horizontal bars, each `{ name, of, value, text, strong, faint }`, its words above it and its value at its end. */
export function barsScene(bars, width, title) {
  const most = Math.max(...bars.map((bar) => bar.value));
  const room = 16 + LETTER * Math.max(...bars.map((bar) => bar.text.length));
  const shapes = [];
  let y = 0;
  for (const { name, of, value, text, strong, faint } of bars) {
    const words = LETTER * (name.length + of.length + 2) > width - 16 ? [name, of] : [`${name}: ${of}`];
    for (const line of words) {
      y += LINE;
      shapes.push({ text: line, at: [8, y - 3], fill: colour(strong ? "ink" : "soft"), bold: strong });
    }
    const long = Math.max(1, (value / most) * (width - 16 - room));
    const [left, top, right, bottom] = [8, y, 8 + long, y + BAR];
    const corners = [
      [left, top],
      [right, top],
      [right, bottom],
      [left, bottom],
    ];
    shapes.push({ area: corners, fill: colour(strong ? "a" : "edge"), alpha: faint ? 0.45 : 1 });
    shapes.push({ text, at: [right + 8, y + BAR - 3], fill: colour("ink"), bold: strong });
    y += ROW;
  }
  return { width, height: y, shapes: [{ rect: [0, 0, width, y], fill: colour("card") }, ...shapes], title };
}

const card = (picture, attributes = {}) => h("section", { class: "card", ...attributes }, picture.node);

/** What each row costs; `rows` are `{ name, fleet, format, cost, currency, hours }`, the plan first. */
export function costs(rows, behind) {
  const priced = rows.filter((row) => row.cost !== null && row.currency === rows[0].currency);
  const picture = new Drawn("plan-costs", "Cost of the plan and of the alternatives");
  const per = (row) => (row.hours === null ? " / hour" : "");
  const bars = priced.map((row, index) => ({
    name: row.name,
    of: `${row.fleet} in ${row.format}`,
    value: row.cost,
    text: `${money(row.cost, row.currency, 2)}${per(row)}`,
    strong: index === 0 && row === rows[0],
  }));
  const title = bars.map((bar) => `${bar.name} ${bar.text}`).join(", ");
  picture.show((width) => barsScene(bars, width, title), {
    ...behind,
    caption: "Each of them meets the limits, by simulation.",
    all: rows.map((row) => [row.name, row.fleet, row.format, row.cost, row.currency]),
    heads: ["option", "accelerators", "format", "cost", "currency"],
  });
  picture.host.hidden = bars.length === 0;
  return card(picture);
}

/** The least cost at each confidence, as bars; null where no error is known. `chosen`: the confidence of the plan. */
export function safety(curve, chosen, rows) {
  const kept = curve.filter((step) => step.cost !== null);
  if (!kept.length) return null;
  const picture = new Drawn("plan-safety", "Cost of safety");
  const bars = kept.map((step) => ({
    name: `chance ${percent(step.confidence, 0)}`,
    of: `${count(step.devices)} × ${step.gpu} in ${step.quant ?? "native"}`,
    value: step.cost,
    text: `${step.exact ? "" : "at most "}${money(step.cost, step.currency, 2)} / hour`,
    strong: step.confidence === chosen,
    faint: !step.exact,
  }));
  const title = bars.map((bar) => `${bar.name} ${bar.text}`).join(", ");
  picture.show((width) => barsScene(bars, width, title), {
    caption: "The least cost that keeps each limit with this chance, of what has a known error.",
    columns: ["confidence", "cost", "accelerators", "format"],
    rows,
    all: curve.map((step) => [step.confidence, step.cost, `${step.devices} x ${step.gpu}`, step.quant ?? "native"]),
  });
  return card(picture, { id: "plan-safety" });
}

const MARKS = ["a", "b", "c", "d"];
const [USER, DEVICE] = ["output_tokens_per_s_per_user", "output_tokens_per_s_per_device"];

/** Output tokens a second of one accelerator against those of one user, by accelerator, and the plan among them. */
export function frontier({ frontiers, chosen, tpot, gpu }) {
  if (!frontiers.length) return null;
  const points = frontiers.flatMap(({ gpu: name, ...rates }, index) =>
    rates[USER].map((x, i) => ({ x, y: rates[DEVICE][i], gpu: name, colour: MARKS[index] ?? "soft" })),
  );
  const own = { x: chosen[USER], y: chosen[DEVICE], gpu, colour: "ink", name: "the plan" };
  const dots = [...points.map((point) => ({ ...point, radius: 2.5, name: "" })), { ...own, radius: 8 }];
  const most = (axis) => 1.06 * Math.max(...dots.map((one) => one[axis]));
  const picture = new Plotted("plan-frontier", "Frontier");
  const whole = (value) => count(Math.round(value));
  const rates = (one) => [decimal(one.x, 1), decimal(one.y, 1)];
  const said = (one) => `${one.name || one.gpu}: ${rates(one)[0]} tokens/s of one user, ${rates(one)[1]} of one accelerator`;
  const first = { ...own, gpu: `the plan, ${gpu}` };
  picture.show(
    {
      x: { label: "output tokens a second of one user", format: whole, range: () => [0, most("x")] },
      y: { format: whole, range: () => [0, most("y")] },
      at: [0, most("x")],
      lines: [],
      dots,
      marks: tpot ? [{ x: 1 / tpot, text: `limit ${shortTime(tpot)}`, colour: "bad" }] : [],
      say: said,
      rest: "Point at a mark to read it.",
    },
    {
      caption:
        "The most output tokens a second of one accelerator at each speed of one user, of the best format and division, by formulas. Left of the limit a token takes too long.",
      columns: ["accelerator", "tokens/s of one user", "tokens/s of one accelerator"],
      rows: [first, ...points].map((one) => [one.gpu, ...rates(one)]),
      all: [first, ...points].map((one) => [one.gpu, one.x, one.y]),
      legend: frontiers.map(({ gpu: name }, index) => ({ name, of: index < MARKS.length ? `of-${index}` : "other", round: true })),
    },
  );
  return card(picture);
}

/** Latencies of the same replicas as shares of their limits, against the load; which of them crosses 1 first. */
export function breaking({ runs, limits, capacity }) {
  const bounded = limits.filter(({ limit }) => limit != null);
  if (!bounded.length || runs.length < 2) return null;
  const at = runs.map((run) => run.load);
  const lines = bounded.map(({ key, name, limit }, index) => ({
    name,
    colour: MARKS[index],
    points: true,
    values: runs.map((run) => (run[key] == null ? null : run[key] / limit)),
  }));
  const most = Math.max(1.1, ...lines.flatMap((line) => line.values.filter((value) => value !== null)));
  const picture = new Plotted("plan-breaks", "What breaks first");
  const text = (index, line) =>
    line.values[index] === null ? `${line.name}: overloaded` : `${line.name} ${percent(line.values[index], 0)} of its limit`;
  picture.show(
    {
      x: { label: "load, of the one asked for", format: (value) => percent(value, 0), range: () => [Math.min(...at, 1) - 0.03, Math.max(...at) + 0.03] },
      y: { format: (value) => percent(value, 0), range: () => [0, 1.05 * Math.min(most, 3)] },
      at,
      lines: [...lines, { name: "limit", colour: "bad", dash: [6, 4], values: at.map(() => 1) }],
      marks: capacity ? [{ x: capacity, text: `carries ${decimal(capacity, 2)} ×`, low: 1 }] : [],
      say: (index) => `Load ${percent(at[index], 0)}: ${lines.map((line) => text(index, line)).join(", ")}`,
      rest: "Point at the curve to read it.",
    },
    {
      caption: "The same replicas, simulated under each load: latencies over their limits.",
      columns: ["load", ...bounded.flatMap(({ name }) => [name, "of its limit"])],
      rows: runs.map((run) => [
        percent(run.load, 0),
        ...bounded.flatMap(({ key, limit }) => (run[key] == null ? ["–", "–"] : [time(run[key], 3), percent(run[key] / limit, 0)])),
      ]),
      all: runs.map((run) => [run.load, ...bounded.flatMap(({ key, limit }) => [run[key], run[key] == null ? null : run[key] / limit])]),
      legend: [...lines.map((line, index) => ({ name: line.name, of: `of-${index}` })), { name: "limit", of: "wrong-line" }],
    },
  );
  return card(picture);
}
