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
  const open = () => explain(view, term, title);
  return h(
    "button",
    {
      type: "button",
      class: "number",
      "data-key": `${term} ${name}`,
      "aria-label": `${name}: ${text}. Explain`,
      onclick: open,
    },
    text,
  );
}

let asked = 0;

/** Opens the explanation of `term`; an answer that comes when the dialog is closed, or asks for another, is dropped. */
export async function explain(view, term, name, trail = []) {
  const mine = ++asked;
  const wanted = () => mine === asked && $("#explanation").open;
  show(name, [h("p", { class: "soft" }, "Asking …")], trail);
  try {
    const { points: _, ...deployment } = view;
    const found = checked("/api/explain", await ask("POST", "/api/explain", { view: deployment, term }), SHAPE);
    const further = (inner) => explain(view, inner, inner, [...trail, { view, term, name }]);
    if (wanted()) show(name, explanation(found, further), trail);
  } catch (error) {
    if (wanted())
      show(
        name,
        [
          h("p", { class: "wrong" }, error.what ?? "The server does not answer."),
          h("p", {}, error.because ?? ""),
          h("p", {}, error.hint ?? ""),
        ],
        trail,
      );
  }
}

/** Facts that are no formula, such as the price list behind a price. */
export function facts(name, rows) {
  asked += 1;
  show(name, [list(rows)], []);
}

const list = (rows) =>
  h(
    "dl",
    { class: "facts" },
    rows
      .filter(([, value]) => value !== "" && value !== null && value !== undefined)
      .flatMap(([term, value]) => [h("dt", {}, term), h("dd", {}, value)]),
  );

function explanation(found, further) {
  const value = found.lines.map((line) => /^value +(.*?) *$/.exec(line)?.[1]).find(Boolean);
  const whence = (origin) => {
    const term = /^inferplan explain (\S+)$/.exec(origin)?.[1];
    return term
      ? h("button", { type: "button", class: "number", onclick: () => further(term) }, `explain ${term}`)
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
    parts.push(table("Inputs", ["Input", { text: "Value", right: true }, "Where it is from"], rows));
  }
  return parts;
}

function show(name, content, trail) {
  const dialog = $("#explanation");
  const shut = () => dialog.close();
  const last = trail.at(-1);
  const back =
    last &&
    h(
      "button",
      { type: "button", onclick: () => explain(last.view, last.term, last.name, trail.slice(0, -1)) },
      `Back to ${last.name}`,
    );
  fill(
    dialog,
    h(
      "div",
      { class: "head" },
      h("h2", { id: "explanation-title", tabindex: "-1" }, name),
      h("div", { class: "row" }, back, h("button", { type: "button", onclick: shut }, "Close")),
    ),
    content,
  );
  if (!dialog.open) {
    dialog.showModal();
    dialog.onclick = (event) => event.target === dialog && shut();
  }
  $("#explanation-title").focus();
  dialog.scrollTop = 0;
}
