// Up to four deployments side by side: every figure in a row, the best of it marked, bars and curves over each other.

import { title } from "./controls.js";
import { Curves } from "./curves.js";
import { csv, fill, h, heading, save, saving, say, table } from "./dom.js";
import { figureButton, figuresOf } from "./figures.js";
import { colourOf, memoryScene } from "./memory.js";
import { Drawn } from "./pictures.js";
import { refusalCard } from "./refusal.js";
import { LETTERS } from "./state.js";
import { bytes, count } from "./units.js";

const LOWER = new Set(["server", "alone", "tpot", "total", "hour", "million"]);
const HIGHER = new Set(["rate", "user", "batch", "context"]);

/** Index of the best value of a row, or -1 where none is better than all others. */
function best(key, values) {
  if (!LOWER.has(key) && !HIGHER.has(key)) return -1;
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return -1;
  const wanted = LOWER.has(key) ? Math.min(...known) : Math.max(...known);
  return known.filter((value) => value === wanted).length === 1 ? values.indexOf(wanted) : -1;
}

const load = ({ batch = 1, prompt = 1024, output = 256 }) => [batch, prompt, output].map(count).join(", ");

const valuesOf = (figures, key) => figures.map((one) => one?.[key]?.value ?? null);

/** A row's cells; the best has a star, and says so. */
function cells(figures, key, views) {
  const winner = best(key, valuesOf(figures, key));
  return figures.map((one, index) => {
    if (!one?.[key]) return "–";
    const star = [h("span", { class: "star", "aria-hidden": "true" }, " ★"), h("span", { class: "unseen" }, " best")];
    return h(
      "span",
      { class: index === winner ? "best" : null },
      figureButton(one[key], views[index]),
      one[key].rest ?? "",
      index === winner ? star : "",
      one[key].band ? h("small", {}, one[key].band) : "",
    );
  });
}

export class CompareTab {
  constructor({ add, again }) {
    Object.assign(this, { add, again });
    this.top = h("section", { class: "card", id: "comparison", "aria-label": "Comparison" });
    this.memory = new Drawn("memory-compared", "Memory of one accelerator");
    this.curves = new Curves("compared", null);
    this.rest = h(
      "div",
      { class: "rest", hidden: true },
      h("section", { class: "card" }, this.memory.node),
      this.curves.node,
    );
    this.node = [this.top, this.rest];
  }

  wait(late) {
    this.rest.classList.toggle("stale", late);
  }

  fail(error) {
    this.rest.hidden = true;
    fill(this.top, refusalCard(error, { again: this.again }));
    say(error.what ?? error.message);
  }

  /** `replies` are records of /api/view or `{ error }`, one for each of `views`. */
  show(replies, views) {
    const answered = replies
      .map((reply, index) => ({ reply, view: views[index], index }))
      .filter(({ reply }) => !reply.error);
    this.#table(replies, views);
    this.rest.hidden = answered.length === 0;
    if (!answered.length) return;
    this.curves.show(answered);
    const bars = answered.map(({ reply, view, index }) => ({
      heading: `${LETTERS[index]}: ${title(view)}`,
      parts: reply.memory,
      usable: reply.memory_usable_bytes,
    }));
    const labels = [...new Set(answered.flatMap(({ reply }) => reply.memory.map((part) => part.label)))];
    const size = ({ reply }, label) => reply.memory.find((part) => part.label === label)?.bytes ?? 0;
    const rows = (written) => [
      ...labels.map((label) => [label, ...answered.map((one) => written(size(one, label)))]),
      ["usable", ...answered.map(({ reply }) => written(reply.memory_usable_bytes))],
    ];
    this.memory.show((width) => memoryScene(bars, width), {
      caption: "One scale for all bars.",
      legend: answered[0].reply.memory.map((part) => ({ name: part.label, of: colourOf(part.name) })),
      columns: ["part", ...answered.map(({ index }) => LETTERS[index])],
      rows: rows(bytes),
      all: rows((value) => value),
    });
  }

  #table(replies, views) {
    const figures = replies.map((reply) => (reply.error ? null : figuresOf(reply)));
    const keys = [...new Set(figures.flatMap((one) => Object.keys(one ?? {}).filter((key) => one[key])))];
    const name = (key) => figures.find((one) => one?.[key])[key].name;
    const raw = keys.map((key) => [name(key), ...valuesOf(figures, key)]);
    const rows = keys.map((key) => [name(key), ...cells(figures, key, views)]);
    const heads = views.map((view, index) => ({
      right: true,
      text: LETTERS[index],
      node: h("span", { class: `of-${index}` }, h("span", { class: "letter" }, LETTERS[index]), title(view)),
    }));
    const refused = replies.flatMap((reply, index) =>
      reply.error
        ? [
            h(
              "div",
              { class: `of-${index}` },
              refusalCard({ ...reply.error, what: `${LETTERS[index]}: ${reply.error.what}` }),
            ),
          ]
        : [],
    );
    fill(
      this.top,
      heading(
        h("h2", {}, "Side by side"),
        saving("CSV", "Comparison", () =>
          save("comparison.csv", csv([["figure", ...views.map(title)], ...raw]), "text/csv"),
        ),
      ),
      table(
        "A star marks the best of each row. Small print: 80 % interval.",
        ["figure", ...heads],
        [["Batch, tokens in, tokens out", ...views.map(load)], ...rows],
      ),
      refused,
      views.length < 2 &&
        h(
          "p",
          {},
          h(
            "button",
            { type: "button", class: "main", "data-key": "add-here", onclick: this.add },
            "Add a deployment to compare",
          ),
        ),
    );
    const winners = ["tpot", "million"]
      .filter((key) => keys.includes(key))
      .map((key) => [name(key), best(key, valuesOf(figures, key))]);
    say(
      `${views.length} deployments. ${winners
        .filter(([, at]) => at >= 0)
        .map(([what, at]) => `Best ${what}: ${LETTERS[at]}`)
        .join(". ")}`,
    );
  }
}
