// The same estimate elsewhere: on the command line, in Python, as a file.

import { copy, csv, h, save } from "./dom.js";

/** Commands to copy and files to save. */
export function elsewhereNodes(reply, view) {
  const block = (name, text, what) =>
    text &&
    h(
      "div",
      { class: "code" },
      h(
        "div",
        { class: "head" },
        h("h3", {}, name),
        h(
          "button",
          { type: "button", "data-key": `copy ${name}`, onclick: (event) => copy(text, event.currentTarget) },
          `Copy ${what}`,
        ),
      ),
      h("pre", {}, text),
    );
  const stem = `${view.model}-${view.gpu}`;
  return [
    h("h2", {}, "Use it elsewhere"),
    block("Command line", reply.command, "command line"),
    block("Python", reply.python, "Python"),
    h(
      "div",
      { class: "row" },
      h(
        "button",
        {
          type: "button",
          "data-key": "json",
          onclick: () => save(`${stem}.json`, JSON.stringify(reply.estimate, null, 2), "application/json"),
        },
        "Save the estimate as JSON",
      ),
      h(
        "button",
        {
          type: "button",
          "data-key": "curves",
          onclick: () => save(`${stem}-curves.csv`, curvesCsv(reply.curves), "text/csv"),
        },
        "Save the curves as CSV",
      ),
      h("button", { type: "button", "data-key": "print", onclick: () => window.print() }, "Print, or save as PDF"),
    ),
  ];
}

function curvesCsv(curves) {
  const columns = Object.keys(curves).filter((key) => Array.isArray(curves[key]));
  return csv([columns, ...curves.batch.map((_, i) => columns.map((key) => curves[key][i]))]);
}
