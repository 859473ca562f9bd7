// The roofline of one accelerator, and the operators of both phases under it.

import { decimal, grouped, percent, quantity, shortQuantity, time } from "./units.js";

/** Draws `roofline` of a reply into `picture`, which is hidden where no operator has a place. */
export function showRoofline(picture, roofline, about) {
  const drawn = roofline.operators.filter((one) => one.intensity && one.achieved_flop_per_s);
  picture.node.parentElement.hidden = drawn.length === 0;
  if (!drawn.length) return;
  const xs = drawn.map((one) => one.intensity);
  const decade = (value, round) => 10 ** round(Math.log10(value));
  const [left, right] = [
    decade(Math.min(...xs, roofline.ridge) / 1.3, Math.floor),
    decade(Math.max(...xs, roofline.ridge) * 1.3, Math.ceil),
  ];
  const at = Array.from({ length: 65 }, (_, i) => left * (right / left) ** (i / 64));
  at.splice(
    at.findIndex((x) => x > roofline.ridge),
    0,
    roofline.ridge,
  );
  const ys = drawn.map((one) => one.achieved_flop_per_s);
  const floor = decade(Math.min(...ys) / 1.3, Math.floor);
  picture.show(
    {
      x: {
        label: "FLOP per byte moved",
        format: (value) => grouped(String(Number(value.toPrecision(3)))),
        log: true,
        range: () => [left, right],
      },
      y: {
        format: (value) => shortQuantity(value, "FLOP/s"),
        log: true,
        range: () => [floor, decade(roofline.peak_flop_per_s, Math.ceil)],
      },
      at,
      lines: [
        {
          name: "roof",
          colour: "soft",
          values: at.map((x) => Math.min(roofline.peak_flop_per_s, x * roofline.bandwidth_byte_per_s)),
        },
      ],
      marks: [{ x: roofline.ridge, text: `ridge ${decimal(roofline.ridge, 1)} FLOP/B`, low: 1 }],
      dots: dots(drawn),
      say: (one) =>
        `${one.phase} ${one.plain}: ${time(one.time_s)}, ${percent(one.share)} of the step, ${one.bound} bound, ${quantity(one.y, "FLOP/s")} at ${decimal(one.x, 1)} FLOP/B, ${one.basis}`,
      rest: "Point at a mark to read it.",
    },
    { ...behind(roofline), about },
  );
}

/** Of the time of a step: operators that take less have no name in the picture; the table has all. */
const NAMED = 0.02;

/** The marks, with the names of operators that matter. */
function dots(drawn) {
  return drawn.map((one) => ({
    ...one,
    x: one.intensity,
    y: one.achieved_flop_per_s,
    radius: 3 + 16 * Math.sqrt(one.share),
    colour: one.phase === "prefill" ? "a" : "b",
    square: one.phase === "prefill",
    name: one.share >= NAMED ? one.name : "",
    plain: one.name,
  }));
}

/** What stands around the picture, and the table behind it: of all operators, those without FLOP too. */
function behind(roofline) {
  return {
    caption: `Roof ${quantity(roofline.peak_flop_per_s, "FLOP/s")} and ${quantity(roofline.bandwidth_byte_per_s, "B/s")}. The area of a mark is its share of the step.`,
    columns: ["operator", "FLOP/B", "FLOP/s", "share", "bound by"],
    rows: roofline.operators.map((one) => [
      `${one.phase} ${one.name}`,
      one.intensity ? decimal(one.intensity, 1) : "–",
      one.achieved_flop_per_s ? quantity(one.achieved_flop_per_s, "FLOP/s") : "–",
      percent(one.share),
      one.bound ?? "overhead",
    ]),
    all: roofline.operators.map((one) => [`${one.phase} ${one.name}`, one.intensity, one.achieved_flop_per_s, one.share, one.bound]),
    legend: [
      { name: "prefill", of: "of-0" },
      { name: "decode", of: "of-1", round: true },
    ],
  };
}
