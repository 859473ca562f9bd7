// The time of both phases by operator.

import { csv, h, heading, save, saving, table } from "./dom.js";
import { number } from "./explain.js";
import { percent, time } from "./units.js";

/** The heading and the table. */
export function operatorNodes(reply, view) {
  const names = [...new Set(reply.roofline.operators.map((one) => one.name))];
  const of = (phase, name) => reply.roofline.operators.find((one) => one.phase === phase && one.name === name);
  const phases = ["prefill", "decode"].filter((phase) => reply.estimate[phase]);
  const cells = (phase, name) => {
    const one = of(phase, name);
    return one
      ? [
          number(time(one.time_s), { term: one.explain, view, name: `${phase} ${name}` }),
          percent(one.share),
          one.bound ?? "overhead",
        ]
      : ["–", "–", "–"];
  };
  const right = (text) => ({ text, right: true });
  const rows = names.map((name) => [name, ...phases.flatMap((phase) => cells(phase, name))]);
  const sums = [
    "a step",
    ...phases.flatMap((phase) => [
      number(time(reply.estimate[phase].time_s), { term: `${phase}.time`, view, name: `${phase} step` }),
      "100.0%",
      reply.estimate[phase].bound,
    ]),
  ];
  const raw = reply.roofline.operators.map((one) => [one.phase, one.name, one.time_s, one.share, one.bound, one.basis]);
  return [
    heading(
      h("h2", {}, "Time by operator"),
      saving("CSV", "Time by operator", () =>
        save("operators.csv", csv([["phase", "operator", "time_s", "share", "bound", "basis"], ...raw]), "text/csv"),
      ),
    ),
    table(
      "Prefill: the prompts of the whole batch. Decode: one step at the mean context.",
      ["operator", ...phases.flatMap((phase) => [right(phase), right("share"), "bound by"])],
      [sums, ...rows],
    ),
  ];
}
