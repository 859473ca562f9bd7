// The figures of an answer by name: as they are written, what explains them, and the bill behind those of money.

import { h } from "./dom.js";
import { number, stated } from "./explain.js";
import { bytes, count, decimal, money, time } from "./units.js";

/** One figure of a headline: a name, what is large, notes below. */
export const figure = (name, big, ...notes) =>
  h(
    "div",
    { class: "figure" },
    h("dt", {}, name),
    h("dd", { class: `big${isLong(big.textContent ?? big) ? " words" : ""}` }, quietened(big)),
    h("dd", { class: "under" }, notes.filter(Boolean).map((note) => h("div", { class: "note" }, note))),
  );

/** What is large with its unit quieter than its value: "94.58 ms". */
function quietened(big) {
  const home = typeof big === "string" ? h("span", {}, big) : big;
  const [, value, unit] = /^([\d.,]+%?)( .*)$/.exec(home.textContent) ?? [];
  if (value && home.childElementCount === 0) home.replaceChildren(value, h("span", { class: "unit" }, unit));
  return home;
}

/** A text of so many letters is no number, and would take two lines. */
const LONG = 14;
const isLong = (text) => text.length > LONG && !/^[\d.,]+ /.test(text);
const LARGE = 5;

/** The figures of a headline: five in a row, on one line, and smaller what else there is. */
export function answer(...figures) {
  const all = figures.flat(3).filter(Boolean);
  const rest = all.slice(LARGE);
  return [
    h("dl", { class: "answer" }, all.slice(0, LARGE)),
    rest.length > 0 && h("dl", { class: "answer lesser" }, rest),
  ];
}

/** The figures of a reply by name, for the headline and for the comparison: `{ text, term, note }`. */
export function figuresOf(reply) {
  return { ...sizes(reply.estimate), ...latencies(reply.estimate), ...rates(reply.estimate), ...costs(reply.cost) };
}

function sizes(found) {
  return {
    fits: {
      name: "Memory of one accelerator",
      text: bytes(found.memory.total_bytes),
      rest: ` of ${bytes(found.memory.usable_bytes)}`,
      term: "memory.total",
      value: found.memory.total_bytes,
    },
    batch: {
      name: "Largest batch at this context",
      text: count(found.max_batch),
      term: "max_batch",
      value: found.max_batch,
    },
    context: found.max_context_tokens !== null && {
      name: "Longest context at this batch",
      text: `${count(found.max_context_tokens)} tokens`,
      term: "max_context",
      value: found.max_context_tokens,
    },
  };
}

/** Between which times 80 % of measurements lie, or nothing. */
const bandOf = (found, key) =>
  found[`${key}_low_s`] == null ? "" : `${time(found[`${key}_low_s`])} to ${time(found[`${key}_high_s`])}`;

function latencies(found) {
  const decodes = found.tpot_s !== null;
  return {
    server: {
      name: found.generates ? "Time to first token at the server" : "Latency at the server",
      text: time(found.ttft_at_server_s),
      band: bandOf(found, "ttft_at_server"),
      term: found.ttft_at_server_s === null ? null : "ttft_at_server",
      value: found.ttft_at_server_s,
    },
    alone: {
      name: found.generates ? "Time to first token, of the batch alone" : "Latency of the batch alone",
      text: time(found.ttft_s),
      band: bandOf(found, "ttft"),
      term: "ttft",
      value: found.ttft_s,
    },
    tpot: decodes && {
      name: "Time per output token",
      text: time(found.tpot_s),
      band: bandOf(found, "tpot"),
      term: "tpot",
      value: found.tpot_s,
    },
    total: decodes && {
      name: "Total latency of the batch alone",
      text: time(found.e2el_s),
      band: bandOf(found, "e2el"),
      term: "e2el",
      value: found.e2el_s,
    },
  };
}

function rates(found) {
  const decodes = found.tpot_s !== null;
  return {
    rate: found.output_tokens_per_s !== null && {
      name: "Output tokens per second",
      text: decimal(found.output_tokens_per_s, 1),
      term: "output_tokens_per_s",
      value: found.output_tokens_per_s,
    },
    user: decodes && {
      name: "Output tokens/s per user",
      text: decimal(1 / found.tpot_s, 1),
      term: "tpot",
      title: "The inverse of this: time per output token",
      value: 1 / found.tpot_s,
    },
  };
}

function costs(cost) {
  return {
    hour: cost && { name: "Cost per hour", text: money(cost.per_hour, cost.currency, 2), cost, value: cost.per_hour },
    million: cost && {
      name: "Cost per million tokens, in and out",
      text: money(cost.per_million_tokens_whole_bill, cost.currency),
      cost,
      value: cost.per_million_tokens_whole_bill,
    },
  };
}

/** The button of a figure: its explanation, or for money the bill. */
export function figureButton(one, view) {
  if (one.cost) return stated(one.text, one.name, () => bill(one.cost, "when the batch runs all the time"));
  return number(one.text, { term: one.term, view, name: one.name, title: one.title });
}

/** What you buy, in words. */
export const sold = (cost) =>
  cost.instance ? `${count(cost.instances)} × ${cost.instance}` : `${count(cost.devices_bought)} × one accelerator`;

/** A price to the cent, or to the tenth of a cent where it has one. */
const priceOf = (value) => decimal(value, 3).replace(/0$/, "");

/** What you buy and at which price, as facts. */
export const purchase = (cost) => [
  [
    "What you buy",
    `${sold(cost)}${cost.instance ? `: ${count(cost.devices_bought)} accelerators` : ""}, ${cost.devices_idle ? count(cost.devices_idle) : "none"} of them idle`,
  ],
  [
    "Price",
    `${priceOf(cost.price_per_instance_hour)} ${cost.currency} per hour each, ${cost.price_term}${cost.price_length ? ` ${cost.price_length}` : ""}`,
  ],
  [
    "Price list",
    [cost.price_source, cost.price_date].filter(Boolean).join(", ") +
      (cost.price_kind && cost.price_kind !== "provider" ? `, a ${cost.price_kind}` : "") +
      (cost.price_is_old ? " (old: prices move within weeks)" : ""),
  ],
  ...(cost.list_price_source
    ? [["At the list price", `${money(cost.list_price_per_hour, cost.currency)} per hour, ${cost.list_price_source}`]]
    : []),
];
export const COST_PAGE = ["Page", h("code", {}, "docs/cost.md")];

/** The whole bill as facts; `when` says at which load. */
export function bill(cost, when) {
  const each = (value) => money(value, cost.currency);
  const tokens = (value) => money(value, cost.currency, 4);
  return [
    ...(cost.beside ? purchase(cost.beside).map(([name, text]) => [`${name}, prompts`, text]) : []),
    ...purchase(cost),
    ["Per hour", each(cost.per_hour)],
    ["Per month of 730 hours", each(cost.per_month)],
    ["Per request", `${decimal(cost.per_request, 6)} ${cost.currency}`],
    [
      "Per million input tokens",
      `${tokens(cost.per_million_input_tokens)}, where an output token costs ${cost.output_to_input_ratio} times an input token`,
    ],
    ["Per million output tokens", cost.per_million_output_tokens && tokens(cost.per_million_output_tokens)],
    [
      "Per million output tokens, counting input as free",
      cost.per_million_output_tokens_whole_bill && tokens(cost.per_million_output_tokens_whole_bill),
    ],
    [
      "Per million tokens, in and out",
      `${tokens(cost.per_million_tokens_whole_bill)} = the bill per hour over the tokens per hour, ${when}`,
    ],
    COST_PAGE,
  ];
}
