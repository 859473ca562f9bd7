// Which accelerators hold the model, how many, in which format: the rows of `inferplan fit`, sorted and filtered here.

import { csv, h, heading, save, saving, table } from "./dom.js";
import { number, stated } from "./explain.js";
import { fields } from "./fields.js";
import { COST_PAGE, purchase } from "./figures.js";
import { Job } from "./job.js";
import { given } from "./simulate.js";
import { TOOLS } from "./state.js";
import { bytes, count, money } from "./units.js";

const COLUMNS = [
  ["gpu", "Accelerator", (row) => row.gpu],
  ["devices", "How many", (row) => row.devices],
  ["quant", "Format", (row) => row.quant],
  ["weights_bytes", "Weights on each", (row) => row.weights_bytes],
  ["kv_pool_bytes", "KV cache on each", (row) => row.kv_pool_bytes],
  ["max_requests", "Requests at once", (row) => row.max_requests],
  ["max_context_tokens", "Longest context", (row) => row.max_context_tokens ?? Infinity],
  ["price", "Per hour", (row) => row.cost?.per_hour ?? Infinity],
];
export class FitTab {
  constructor({ change, use, apply, lost, catalog }) {
    Object.assign(this, { use });
    this.sort = { key: "price", down: false };
    this.all = false;
    this.form = fields(
      [
        { key: "context", label: "Tokens per request, prompt and output", kind: "number", placeholder: "8,192" },
        { key: "users", label: "Requests in flight", kind: "number", placeholder: "1", when: (values) => !values.people },
        { key: "people", label: "Or people at work, with a workload", kind: "number", placeholder: "none" },
        {
          key: "workload",
          label: "Workload: lengths and pauses",
          kind: "select",
          options: [["", "none"], ...catalog.workloads.map((name) => [name, name])],
        },
        { key: "most", label: "Largest number of accelerators", kind: "number", placeholder: "8" },
        { key: "gpu", label: "Filter accelerators", kind: "text", placeholder: "such as h100" },
        {
          key: "format",
          label: "Format",
          kind: "select",
          options: [
            ["", "all"],
            ["native", "native: the checkpoint's own"],
            ["fp8", "fp8"],
            ["int4", "int4"],
          ],
        },
      ],
      { prefix: "fit", read: TOOLS.fit, change },
    );
    this.job = new Job({
      kind: "fit",
      word: "Find what fits",
      options: () => this.#options(),
      draw: (result, job) => this.#draw(result, job),
      lost,
      apply,
    });
    const all = h("input", {
      type: "checkbox",
      id: "fit-all",
      onchange: () => this.#again(() => (this.all = all.checked)),
    });
    this.node = [
      h(
        "section",
        { class: "card", "aria-label": "Question" },
        h(
          "div",
          { class: "form" },
          this.form.nodes,
          h("div", { class: "choice" }, h("label", {}, all, "also show what does not fit")),
          h("div", { class: "wide" }, this.job.form),
        ),
      ),
      this.job.found,
    ];
  }

  /** Filters are of the page alone: the rows are drawn again, nothing is asked. */
  set(state) {
    this.state = state;
    this.form.show(state.fit);
    this.job.redraw();
  }

  #options() {
    const { fit: asked, views, active } = this.state;
    const { model, engine } = views[active];
    const { context, people, workload, most } = asked;
    return given({ model, engine, context, "in-flight": people ? undefined : asked.users, people, workload, most });
  }

  #again(change) {
    change();
    this.job.redraw();
  }

  #rows() {
    const { gpu, format } = this.state.fit;
    const by = COLUMNS.find(([key]) => key === this.sort.key)[2];
    const shown = this.reply.options.filter(
      (row) =>
        (this.all || row.fits) && (!gpu || row.gpu.includes(gpu.toLowerCase())) && (!format || row.quant === format),
    );
    const order = (left, right) => {
      const [a, b] = [by(left), by(right)];
      if (left.fits !== right.fits) return left.fits ? -1 : 1;
      return (a < b ? -1 : a > b ? 1 : left.gpu.localeCompare(right.gpu)) * (this.sort.down ? -1 : 1);
    };
    return shown.sort(order);
  }

  /** The nodes of a result. */
  #draw(result, { options, behind }) {
    Object.assign(this, { reply: result, model: options.model });
    this.views = new Map(result.options.map((row, index) => [row, behind.views[index]]));
    const rows = this.#rows();
    const heads = COLUMNS.map(([key, text], index) => this.#head(key, text, index));
    const body = rows.map((row) => Object.assign(this.#row(row), { class: row.fits ? null : "off" }));
    const held = this.reply.load.requests_at_once;
    return h(
      "section",
      { class: "card", id: "fits" },
      heading(
        h("h2", { id: "fit-answer" }, this.#answer()),
        saving("CSV", "Fit", () => save("fit.csv", this.#csv(rows), "text/csv")),
      ),
      this.#first(),
      rows.length > 0 && this.#legend(),
      table(
        `The fewest accelerators of each kind that hold ${count(held)} ${held === 1 ? "request" : "requests"} of ${count(this.reply.context_tokens)} tokens: ${rows.length} rows`,
        [...heads, "Use it"],
        body,
        { class: "scroll tall", "aria-describedby": "fit-legend" },
      ),
      rows.length === 0 &&
        h(
          "p",
          {},
          "No accelerator on file fits under these limits. Try more accelerators, fewer requests, or another format.",
        ),
    );
  }

  /** What stands in a row, before the rows. */
  #legend() {
    return h(
      "p",
      { class: "caption", id: "fit-legend" },
      "Each row: weights and KV cache per accelerator, requests and context of all its accelerators together, and the price per hour of what you  ",
      "rent for it, in whole instances. Format: that of the weights; native is the checkpoint's own. ",
      this.all && h("span", { class: "off" }, "A row in grey does not fit, and says why. "),
      "An underlined number opens its source.",
    );
  }

  /** What to look at first: the cheapest of each format, and the most requests for the money. */
  #first() {
    const found = Object.entries(this.reply.first).map(([name, { gpu, quant }]) => [
      name,
      this.reply.options.find((row) => row.gpu === gpu && row.quant === quant),
    ]);
    const rows = found
      .filter(([, row]) => row?.fits)
      .map(([name, row]) => [
        name,
        `${count(row.devices)} × ${row.gpu}`,
        this.#number(row, count(row.max_requests), "max_batch", name),
        this.#price(row),
        this.#take(row, name),
      ]);
    return (
      rows.length > 0 &&
      table(
        "What to look at first",
        ["option", "Accelerators", { text: "Requests at once", right: true }, { text: "Per hour", right: true }, "Use it"],
        rows,
      )
    );
  }

  #take(row, where) {
    return h(
      "button",
      {
        type: "button",
        "aria-label": `Estimate ${count(row.devices)} ${row.gpu} in ${row.quant}`,
        "data-key": `use-${where}-${row.gpu}-${row.quant}`,
        onclick: () => this.use(row),
      },
      "Estimate",
    );
  }

  #head(key, text, index) {
    const here = this.sort.key === key;
    const press = () => this.#again(() => (this.sort = { key, down: here && !this.sort.down }));
    const node = h(
      "button",
      { type: "button", class: "sort", "data-key": `sort-${key}`, onclick: press, "aria-label": `${text}: sort` },
      text,
      here ? (this.sort.down ? " ▼" : " ▲") : "",
    );
    return {
      text,
      node,
      right: index !== 0 && key !== "quant",
      sort: here ? (this.sort.down ? "descending" : "ascending") : null,
    };
  }

  #row(row) {
    if (!row.fits) return [row.gpu, "–", row.quant, h("td", { colSpan: COLUMNS.length - 2 }, row.reason)];
    return [
      row.gpu,
      count(row.devices),
      row.quant,
      this.#number(row, bytes(row.weights_bytes), "memory.weights", "Weights on each"),
      this.#number(row, bytes(row.kv_pool_bytes), "memory.kv_pool", "KV cache on each"),
      this.#number(row, count(row.max_requests), "max_batch", "Requests at once"),
      row.max_context_tokens === null
        ? "no limit"
        : this.#number(row, `${count(row.max_context_tokens)} tokens`, "max_context", "Longest context"),
      this.#price(row),
      this.#take(row, "row"),
    ];
  }

  /** A number of a row, which opens the explanation of the estimate with that row's memory. */
  #number(row, text, term, what) {
    return number(text, { term, view: this.views.get(row), name: `${what}, ${row.gpu} in ${row.quant}` });
  }

  #price({ gpu, quant, cost }) {
    if (!cost) return "no price";
    const text = money(cost.per_hour, cost.currency, 2);
    const rows = [...purchase(cost), ["Per hour", money(cost.per_hour, cost.currency)], COST_PAGE];
    return stated(text, `Per hour, ${gpu} in ${quant}`, () => rows);
  }

  /** The accelerator in hand first: how many of it, in which format. */
  #answer() {
    const { model } = this;
    const { gpu } = this.state.views[this.state.active];
    const order = ["native", "fp8", "int8"];
    const rank = ({ quant }) => (order.includes(quant) ? order.indexOf(quant) : order.length);
    const mine = this.reply.options
      .filter((row) => row.gpu === gpu && row.fits)
      .sort((left, right) => rank(left) - rank(right));
    if (!mine.length) return `${model} does not fit on ${gpu}`;
    return `${model} on ${gpu}: ${mine.map((row) => `${count(row.devices)} in ${row.quant}`).join(", ")}`;
  }

  #csv(rows) {
    return csv([
      COLUMNS.map(([key]) => (key === "price" ? "per_hour" : key)),
      ...rows.map((row) => COLUMNS.map(([key]) => (key === "price" ? row.cost?.per_hour : row[key]))),
    ]);
  }
}
