// The curves over the batch, of one deployment or of several.

import { about } from "./controls.js";
import { h } from "./dom.js";
import { Plotted } from "./pictures.js";
import { LETTERS } from "./state.js";
import { count, decimal, shortQuantity, shortTime, time } from "./units.js";

const KINDS = {
  ttft: { key: "ttft_s", name: "Time to first token, batch alone", format: shortTime, exact: time, unit: "ttft_s" },
  tpot: { key: "tpot_s", name: "Time per output token", format: shortTime, exact: time, unit: "tpot_s" },
  throughput: {
    key: "throughput_tokens_per_s",
    name: "Output tokens per second",
    format: (value) => shortQuantity(value, ""),
    exact: (value) => `${decimal(value, 1)} tokens/s`,
    unit: "output_tokens_per_s",
  },
};
const MARKS = ["a", "b", "c", "d"];

/** Three pictures, one for each kind. `deployments` are `{ reply, view, index }`; a click chooses the batch. */
export class Curves {
  constructor(prefix, pick) {
    this.pick = pick;
    this.pictures = Object.fromEntries(
      Object.entries(KINDS).map(([kind, { name }]) => [
        kind,
        new Plotted(`${prefix}-${kind}`, name, `${prefix}-batch`),
      ]),
    );
    this.log = h("select", { id: `${prefix}-axes`, onchange: () => this.show(this.deployments) }, [
      h("option", { value: "" }, "linear"),
      h("option", { value: "log" }, "logarithmic"),
    ]);
    this.node = h(
      "section",
      { class: "card stale-able", "aria-labelledby": `${prefix}-curves` },
      h(
        "div",
        { class: "head" },
        h("h2", { id: `${prefix}-curves` }, "From one sequence to the largest batch"),
        h("label", { class: "inline", for: `${prefix}-axes` }, "Axes ", this.log),
      ),
      h(
        "div",
        { class: "charts" },
        Object.values(this.pictures).map((picture) => picture.node),
      ),
    );
  }

  show(deployments) {
    this.deployments = deployments;
    for (const [kind, picture] of Object.entries(this.pictures)) {
      const shown = deployments.filter(({ reply }) => reply.curves[KINDS[kind].key]);
      picture.node.hidden = shown.length === 0;
      if (shown.length) this.#one(picture, KINDS[kind], shown);
    }
  }

  #one(picture, kind, shown) {
    const at = [...new Set(shown.flatMap(({ reply }) => reply.curves.batch))].sort((left, right) => left - right);
    const lines = shown.map(({ reply, view, index }) => {
      const values = new Map(reply.curves.batch.map((batch, i) => [batch, reply.curves[kind.key][i]]));
      const name = `${LETTERS[index]}: ${view.model} on ${view.gpu}`;
      return {
        name,
        colour: MARKS[index],
        values: at.map((batch) => values.get(batch) ?? null),
        ...(shown.length === 1 ? band(reply.curves, kind) : {}),
      };
    });
    const whiskers = shown.flatMap((one) => whisker(one, kind));
    const log = this.log.value === "log";
    const several = shown.length > 1;
    const say = (i) =>
      `Batch ${count(at[i])}: ${lines
        .filter((line) => line.values[i] !== null)
        .map((line) => (several ? `${line.name[0]} ` : "") + kind.exact(line.values[i]))
        .join(", ")}`;
    picture.show(
      {
        x: { label: "batch, sequences at once", format: (value) => count(value), log },
        y: { format: kind.format, log },
        at,
        lines,
        whiskers,
        marks: several ? [] : [{ x: shown[0].view.batch ?? 1, text: `batch ${count(shown[0].view.batch ?? 1)}` }],
        pick: this.pick,
        say,
        rest: several ? "" : "Point at the curve to read it; a click takes that batch.",
      },
      {
        columns: [
          "batch",
          ...lines.flatMap((line) => [several ? line.name : kind.unit, ...(line.low ? ["low", "high"] : [])]),
        ],
        rows: sampled(at).map((i) => [
          count(at[i]),
          ...columnsOf(lines).map((values) => (values[i] === null ? "–" : kind.exact(values[i]))),
        ]),
        all: at.map((batch, i) => [batch, ...columnsOf(lines).map((values) => values[i])]),
        caption: lines.some((line) => line.low)
          ? "80 % of held-out measurements lie within the band."
          : whiskers.length
            ? "80 % of held-out measurements lie within the bar at the batch in hand."
            : "",
        about: several ? "" : about(shown[0].view),
        legend: several ? lines.map((line, i) => ({ name: line.name, of: `of-${shown[i].index}` })) : [],
      },
    );
  }
}

const columnsOf = (lines) => lines.flatMap((line) => [line.values, ...(line.low ? [line.low, line.high] : [])]);

/** The error band along a curve, where one is known. */
function band(curves, kind) {
  const [low, high] = [curves[kind.key.replace("_s", "_low_s")], curves[kind.key.replace("_s", "_high_s")]];
  return kind.key !== "throughput_tokens_per_s" && Array.isArray(low) && Array.isArray(high) ? { low, high } : {};
}

/** The error band at the batch that was asked for. */
function whisker({ reply, view, index }, kind) {
  const stem = kind.key === "throughput_tokens_per_s" ? null : kind.key.replace("_s", "");
  const [low, high] = [reply.estimate[`${stem}_low_s`], reply.estimate[`${stem}_high_s`]];
  return low && high ? [{ x: view.batch ?? 1, low, high, middle: reply.estimate[kind.key], colour: MARKS[index] }] : [];
}

/** About thirty of the points, in even ratios. */
function sampled(at) {
  const wanted = new Set();
  for (let i = 0; i < 30; i++) wanted.add(Math.round((at.length - 1) ** (i / 29)) - (i ? 0 : 1));
  return [...wanted].filter((i) => i >= 0 && i < at.length).sort((left, right) => left - right);
}
