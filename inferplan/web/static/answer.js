// The estimate: the answer first, then the memory, the roofline, the curves, the operators and the same elsewhere.

import { about } from "./controls.js";
import { Curves } from "./curves.js";
import { Stage, fill, h, say } from "./dom.js";
import { elsewhereNodes } from "./elsewhere.js";
import { number } from "./explain.js";
import { heading, headline, loadOf } from "./headline.js";
import { Hosted } from "./hosted.js";
import { colourOf, memoryScene } from "./memory.js";
import { operatorNodes } from "./operators.js";
import { Drawn, Plotted } from "./pictures.js";
import { refusalCard } from "./refusal.js";
import { showRoofline } from "./roofline.js";
import { bytes, count, percent } from "./units.js";

/** What the reply of /api/view must hold. */
export const SHAPE = {
  command: "string",
  python: "?string",
  notes: "array",
  estimate: "object",
  "estimate.memory.total_bytes": "number",
  "estimate.ttft_s": "number",
  "estimate.max_batch": "number",
  memory: "array",
  memory_total_bytes: "number",
  memory_usable_bytes: "number",
  roofline: "object",
  "curves.batch": "array",
  "curves.ttft_s": "array",
  cost: "?object",
  cost_why: "?string",
};

export class EstimateTab {
  constructor({ change, api, again }) {
    Object.assign(this, { change, again });
    this.top = h("section", { class: "card", id: "answer", "aria-label": "Answer" });
    this.memory = new Drawn("memory", "Memory of one accelerator", true);
    this.roofline = new Plotted("roofline", "Roofline of one accelerator");
    this.curves = new Curves("curve", (batch) => change("batch", batch));
    this.hosted = new Hosted("estimate", api);
    this.operators = h("section", { class: "card", id: "operators", "aria-label": "Time by operator" });
    this.same = h("section", { class: "card", "aria-label": "Use it elsewhere" });
    const pair = h(
      "div",
      { class: "pair" },
      h("section", { class: "card" }, this.memory.node),
      h("section", { class: "card" }, this.roofline.node),
    );
    this.rest = h("div", { class: "rest", hidden: true }, pair, this.curves.node, this.hosted.node, this.operators, this.same);
    this.node = [this.top, this.rest];
    this.stage = new Stage(this.curves.node, this.hosted.node, this.operators, this.same);
  }

  set({ api }) {
    this.price = api;
    this.#compare();
  }

  #compare() {
    if (!this.reply) return;
    const { batch, prompt_tokens: prompt, output_tokens: output } = this.reply.estimate.load;
    const { cost } = this.reply;
    const load = { prompt, output: output ?? 0, of: `with batches of ${count(batch)} all the time` };
    this.stage.show(this.hosted.node, () => this.hosted.show(this.price, cost, load));
  }

  wait(late) {
    this.rest.classList.toggle("stale", late);
  }

  fail(error, view) {
    this.rest.hidden = true;
    const refused = refusalCard(error, {
      apply: this.change,
      again: error.status === 409 || error.status === 400 ? null : this.again,
    });
    fill(this.top, heading(view, loadOf(view)), refused);
    say(`${error.what ?? error.message}. ${error.hint ?? ""}`);
  }

  show(reply, view) {
    this.rest.hidden = false;
    this.reply = reply;
    this.#compare();
    const { nodes, spoken } = headline(reply, view);
    fill(this.top, nodes);
    say(spoken);
    this.#memory(reply, view);
    showRoofline(this.roofline, reply.roofline, about(view));
    this.stage.show(this.curves.node, () => this.curves.show([{ reply, view, index: 0 }]));
    this.stage.show(this.operators, () => fill(this.operators, operatorNodes(reply, view)));
    this.stage.show(this.same, () => fill(this.same, elsewhereNodes(reply, view)));
  }

  #memory(reply, view) {
    const parts = reply.memory;
    const heading = `${bytes(reply.memory_total_bytes)} of ${bytes(reply.memory_usable_bytes)} used`;
    const usable = reply.memory_usable_bytes;
    const free = usable - reply.memory_total_bytes;
    this.memory.show((width) => memoryScene([{ heading, parts, usable }], width), {
      about: about(view),
      columns: ["part", "bytes", "share"],
      rows: [
        ...parts.map((part) => [
          part.label,
          number(bytes(part.bytes), { term: part.explain, view, name: part.label }),
          percent(part.bytes / usable),
        ]),
        [
          "total",
          number(bytes(reply.memory_total_bytes), { term: "memory.total", view, name: "total" }),
          percent(reply.memory_total_bytes / usable),
        ],
        ["free", bytes(free), percent(free / usable)],
      ],
      all: [
        ...parts.map((part) => [part.label, part.bytes, part.bytes / usable]),
        ["total", reply.memory_total_bytes, reply.memory_total_bytes / usable],
      ],
      legend: parts.map((part) => ({ name: `${part.label} ${bytes(part.bytes)}`, of: colourOf(part.name) })),
    });
  }
}
