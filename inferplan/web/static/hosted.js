// Own accelerators against an API that is paid by the token: a bill of a month over its requests, and where both cost
// the same (docs/cost.md, "Break-even").

import { h } from "./dom.js";
import { Plotted } from "./pictures.js";
import { count, decimal, money, percent, shortQuantity } from "./units.js";

/** Hours of a month and seconds of an hour, as inferplan/units.py has them. */
const MONTH = 730 * 3600;

/** The requests of a month from which on the bill is less than that of an API, as `inferplan cost --api-price` has it. */
export function breakEven(cost, { prompt, output }, { input, generated }) {
  const charged = (prompt * input + output * generated) / 1e6;
  const volume = charged > 0 ? cost.per_month / charged : Infinity;
  const served = (cost.per_hour / 3600 / cost.per_request) * MONTH;
  return { charged, volume, served, share: volume / served };
}

/** The price of an API, "0.60/0.80", as numbers; null where there is none. */
const parsed = (text) => {
  if (!text) return null;
  const [input, generated] = text.split("/").map(Number);
  return { input, generated };
};

/** The card: two fields for what a million tokens cost at the API, `change("0.60/0.80")`, and the comparison. */
export class Hosted {
  constructor(prefix, change) {
    this.fields = ["input", "output"].map((side) => {
      const input = h("input", { id: `${prefix}-api-${side}`, type: "number", min: "0", step: "any", inputmode: "decimal" });
      input.addEventListener("input", () => this.#typed(change));
      return { input, label: h("label", { for: input.id }, `A million ${side} tokens at the API`) };
    });
    this.picture = new Plotted(`${prefix}-hosted`, "A month's bill against an API");
    this.says = h("p", { role: "status" });
    this.node = h(
      "section",
      { class: "card rest", id: `${prefix}-api`, "aria-label": "Against an API" },
      h("h2", {}, "Against an API that is paid by the token"),
      h("div", { class: "form" }, this.fields.map(({ input, label }) => h("div", { class: "field" }, label, input))),
      this.says,
      this.picture.node,
    );
  }

  #typed(change) {
    const texts = this.fields.map(({ input }) => input.value);
    const fine = this.fields.every(({ input }) => !input.validity.badInput && !(Number(input.value) < 0));
    this.fields.forEach(({ input }) => input.setAttribute("aria-invalid", String(input.validity.badInput || Number(input.value) < 0)));
    if (!fine) this.says.textContent = "Prices of 0 or more.";
    else if (texts.every((text) => text === "")) change(undefined);
    else if (texts.every((text) => text !== "")) change(texts.map(Number).join("/"));
  }

  /** `cost` is a bill as the JSON has it, or null; `load`: `{ prompt, output, of, most }`, tokens of a request, the load in words, and the requests per second that are carried within limits, if there are any. */
  show(price, cost, load) {
    this.node.hidden = !cost;
    if (!cost) return;
    const api = parsed(price);
    this.fields.forEach(({ input }, index) => {
      if (document.activeElement !== input) input.value = api ? Object.values(api)[index] : "";
    });
    const { volume, served, share, charged } = api ? breakEven(cost, load, api) : {};
    this.picture.node.hidden = !(volume > 0 && Number.isFinite(volume));
    this.says.textContent = api
      ? verdict({ volume, share, charged }, cost, load)
      : `Own accelerators: ${money(cost.per_million_input_tokens, cost.currency, 4)} per million input tokens${cost.per_million_output_tokens ? `, ${money(cost.per_million_output_tokens, cost.currency, 4)} per million output tokens` : ""}, ${load.of}. With the prices of an API both are compared.`;
    if (!this.picture.node.hidden) this.#draw({ volume, served, charged, most: (load.most ?? Infinity) * MONTH }, cost);
  }

  #draw({ volume, served, charged, most }, { per_month: own, currency }) {
    const right = 1.25 * Math.max(Math.min(volume, 4 * served), served);
    const at = Array.from({ length: 51 }, (_, i) => (i / 50) * right);
    const lines = [
      { name: "own accelerators", colour: "a", values: at.map((x) => (x <= served ? own : null)) },
      { name: "API", colour: "b", values: at.map((x) => x * charged) },
    ];
    const bills = (x, index) => lines.map((line) => `${line.name} ${line.values[index] === null ? "too few" : money(line.values[index], currency, 0)}`);
    this.picture.show(
      {
        x: { label: "requests of a month", format: (value) => shortQuantity(value, ""), range: () => [0, right] },
        y: { format: (value) => shortQuantity(value, ""), range: () => [0, 1.1 * Math.max(own, right * charged)] },
        at,
        lines,
        marks: [
          ...(volume <= Math.min(right, most) ? [{ x: volume, text: `break-even ${shortQuantity(volume, "")}` }] : []),
          { x: served, text: `this load ${shortQuantity(served, "")}`, low: 1 },
        ],
        say: (index) => `${count(Math.round(at[index]))} requests: ${bills(at[index], index).join(", ")}`,
        rest: "Point at the lines to read them.",
      },
      {
        caption: `The bill in ${currency}. Own accelerators are paid for busy or idle, and end at the load of this bill.`,
        columns: ["requests of a month", ...lines.map((line) => line.name)],
        rows: at.flatMap((x, i) => (i % 5 ? [] : [[count(Math.round(x)), ...lines.map((line) => (line.values[i] === null ? "–" : money(line.values[i], currency, 0)))]])),
        all: at.map((x, i) => [x, ...lines.map((line) => line.values[i])]),
        legend: lines.map((line, index) => ({ name: line.name, of: `of-${index}` })),
      },
    );
  }
}

/** The comparison in words. */
function verdict({ volume, share, charged }, { per_request: own, currency }, { of, most = Infinity }) {
  const million = `A million requests: ${money(1e6 * own, currency, 2)} ${of}, ${money(1e6 * charged, currency, 2)} at the API.`;
  if (!Number.isFinite(volume)) return `${million} The API costs nothing.`;
  if (volume > most * MONTH) return `${million} The API stays cheaper at any load these replicas carry (up to ${decimal(most, 1)} requests/s).`;
  const at = `Break-even: ${count(Math.round(volume))} requests per month`;
  return share <= 1
    ? `${million} ${at}, ${percent(share, 0)} of this load.`
    : `${million} ${at}, ${decimal(share, 1)} times this load: the API costs less.`;
}
