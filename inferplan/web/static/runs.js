// The pictures of a simulation: how its latencies are spread, against the limits; queue and batch over the run.

import { h } from "./dom.js";
import { Plotted } from "./pictures.js";
import { count, decimal, percent, shortTime, time } from "./units.js";

const TABLED = [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1];

/** The share of the requests that is done within each time, one picture for each latency of `names`. */
export function spread(result, behind, names) {
  const shown = Object.keys(names).filter((key) => behind.latencies[key]);
  if (!shown.length) return null;
  return h(
    "section",
    { class: "card", "aria-labelledby": "spread" },
    h("h2", { id: "spread" }, "How many requests are done within each time"),
    h(
      "div",
      { class: "charts" },
      shown.map((key) => distribution(key, names[key], result, behind)),
    ),
  );
}

function distribution(key, name, { run, slo, [key]: figures }, { shares, latencies }) {
  const at = latencies[key];
  const limit = slo[key];
  const p = `p${Number(run.percentile ?? 95)}`;
  const usual = at[shares.indexOf(0.99)] * 1.15;
  const right = limit > usual && limit < 3 * usual ? limit * 1.1 : usual;
  const picture = new Plotted(`simulation-${key.replace("_s", "")}`, name);
  const within = shares.filter((share, index) => at[index] <= limit).at(-1) ?? 0;
  picture.show(
    {
      x: { label: "time", format: shortTime, range: () => [0, right] },
      y: { format: (value) => percent(value, 0), range: () => [0, 1] },
      at,
      lines: [{ name, colour: "a", values: shares }],
      marks: [
        ...(figures[p] == null ? [] : [{ x: figures[p], text: `${p} ${time(figures[p], 3)}`, low: 1 }]),
        ...(limit == null ? [] : [{ x: limit, text: `limit ${shortTime(limit)}`, colour: "bad", low: 2 }]),
      ],
      say: (index) => `${percent(shares[index])} of the requests: ${time(at[index])} or less`,
      rest: "Point at the curve to read it.",
    },
    {
      caption: limit == null ? "" : `About ${percent(within, 0)} of the requests keep this limit.`,
      columns: ["share of the requests", "done within"],
      rows: TABLED.map((share) => [percent(share), time(at[shares.indexOf(share)])]),
      all: shares.map((share, index) => [share, at[index]]),
      heads: ["share", key],
    },
  );
  return picture.node;
}

const COUNTS = { running: "in the batch", waiting: "in the queue" };

/** Requests in the batch and in the queue over the run: their mean in each part of it, and the most. */
export function timeline({ counted_s: counted, spans }) {
  const { start_s: start } = spans;
  const at = start.map((second) => second - start[0]);
  const [from, to] = counted.map((second) => second - start[0]);
  const picture = new Plotted("simulation-timeline", "Queue and batch over the run");
  const whole = (value) => count(Math.round(value));
  const lines = Object.entries(COUNTS).map(([key, name], index) => ({
    name,
    colour: "ab"[index],
    values: spans[key].mean,
    low: spans[key].mean,
    high: spans[key].most,
  }));
  const said = (line, index) => `${decimal(line.values[index], 1)} ${line.name}, at most ${count(line.high[index])}`;
  const columns = lines.flatMap((line) => [`${line.name}, mean`, `${line.name}, most`]);
  const figures = (index) => lines.flatMap((line) => [line.values[index], line.high[index]]);
  const every = Math.ceil(at.length / 30);
  picture.show(
    {
      x: { label: "seconds of the run", format: whole },
      y: { format: (value) => decimal(value, value % 1 ? 1 : 0), range: () => [0, 1.08 * Math.max(1, ...lines.flatMap((line) => line.high))] },
      at,
      lines,
      marks: [...(from > 0 ? [{ x: from, text: "counted from here", low: 1 }] : []), ...(to < at.at(-1) ? [{ x: to, text: "to here", low: 1 }] : [])],
      say: (index) => `${decimal(at[index], 1)} s: ${lines.map((line) => said(line, index)).join("; ")}`,
      rest: "Point at the curve to read it.",
    },
    {
      caption: "Requests of all replicas: the mean over each part of the run, and up to the most at one moment.",
      columns: ["second", ...columns],
      rows: at.flatMap((second, index) => (index % every ? [] : [[decimal(second, 1), ...figures(index).map((value) => decimal(value, 1))]])),
      all: at.map((second, index) => [second, ...figures(index)]),
      legend: lines.map((line, index) => ({ name: line.name, of: `of-${index}` })),
    },
  );
  return h("section", { class: "card" }, picture.node);
}
