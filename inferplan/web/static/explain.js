// Every number opens where it comes from: the explanation of `inferplan explain`, part by part.

import { ask, checked } from "./api.js";
import { $, fill, h, table } from "./dom.js";

const SHAPE = {
  number: "string",
  formula: "string",
  substituted: "string",
  inputs: "array",
  made_of: "array",
  page: "string",
  lines: "array",
};

/** A number that explains itself. `term` is what `inferplan explain` calls it; `view` the deployment it belongs to; `title` what is explained. */
export function number(text, { term, view, name, title = name }) {
  if (!term) return h("span", {}, text);
  return opener(text, name, () => explain(view, term, title), `${term} ${name}`);
}

/** A number that opens facts: `rows(back)` as of `facts`. */
export const stated = (text, name, rows) => opener(text, name, () => facts(name, rows));

const opener = (text, name, open, key = name) =>
  h(
    "button",
    { type: "button", class: "number", "data-key": key, "aria-label": `${name}: ${text}. Explain`, onclick: open },
    text,
  );

let asked = 0;

/** Opens the explanation of `term`; `trail` are the panels to go back to, each `{ name, open }`. An answer that comes when the dialog is closed, or asks for another, is dropped; one that is wanted leaves the buttons above it as they are, so that a click meanwhile is not lost. */
export async function explain(view, term, name, trail = []) {
  const mine = ++asked;
  const wanted = () => mine === asked && $("#explanation").open;
  const body = show(name, [h("p", { class: "soft" }, "Asking …")], trail);
  try {
    const { points: _, ...deployment } = view;
    const found = checked("/api/explain", await ask("POST", "/api/explain", { view: deployment, term }), SHAPE);
    const open = (inner) =>
      explain(view, inner, inner, [...trail, { name, open: () => explain(view, term, name, trail) }]);
    if (wanted()) fill(body, explanation(found, open));
  } catch (error) {
    if (wanted())
      fill(
        body,
        h("p", { class: "wrong" }, error.what ?? "The server does not answer."),
        h("p", {}, error.because ?? ""),
        h("p", {}, error.hint ?? ""),
      );
  }
}

/** Opens facts that are no formula, such as the price list behind a price: `rows(back)` are pairs of a name and what is said. */
export function facts(name, rows) {
  asked += 1;
  show(name, [list(rows({ name, open: () => facts(name, rows) }))], []);
}

/** A way from facts to the explanation of `term` of `view`, and `back`. */
export const further = (text, { view, term }, back) =>
  h("button", { type: "button", class: "number", onclick: () => explain(view, term, text, [back]) }, text);

const list = (rows) =>
  h(
    "dl",
    { class: "facts" },
    rows
      .filter(([, value]) => value !== "" && value !== null && value !== undefined)
      .flatMap(([term, value]) => [h("dt", {}, term), h("dd", {}, value)]),
  );

function explanation(found, open) {
  const value = found.lines.map((line) => /^value +(.*?) *$/.exec(line)?.[1]).find(Boolean);
  const whence = (origin) => {
    const term = /^inferplan explain (\S+)$/.exec(origin)?.[1];
    return term
      ? h("button", { type: "button", class: "number", onclick: () => open(term) }, `explain ${term}`)
      : origin;
  };
  const parts = [
    list([
      ["Value", value],
      ["Formula", h("code", {}, found.formula)],
      ["In numbers", h("code", {}, found.substituted)],
      ["Page", h("code", {}, found.page)],
    ]),
  ];
  if (found.made_of.length) {
    parts.push(
      table(
        "Made of",
        ["Part", { text: "Value", right: true }, "How"],
        found.made_of.map((part) => [part.name, part.value, part.how]),
      ),
    );
  }
  if (found.inputs.length) {
    const rows = found.inputs.map((input) => [
      input.symbol,
      input.value,
      h("span", {}, whence(input.origin), input.source ? h("span", { class: "soft" }, ` – ${input.source}`) : ""),
    ]);
    parts.push(table("Inputs", ["Input", { text: "Value", right: true }, "Where it comes from"], rows));
  }
  return parts;
}

/** Shows a panel, and gives the part of it below its head. */
function show(name, content, trail) {
  const dialog = $("#explanation");
  const body = h("div", {}, content);
  const shut = () => dialog.close();
  const last = trail.at(-1);
  const back =
    last &&
    h("button", { type: "button", onclick: () => last.open() }, `Back to ${last.name}`);
  fill(
    dialog,
    h(
      "div",
      { class: "head" },
      h("h2", { id: "explanation-title", tabindex: "-1" }, name),
      h("div", { class: "row" }, back, h("button", { type: "button", onclick: shut }, "Close")),
    ),
    body,
  );
  if (!dialog.open) {
    dialog.showModal();
    dialog.onclick = (event) => event.target === dialog && shut();
  }
  $("#explanation-title").focus();
  dialog.scrollTop = 0;
  return body;
}
