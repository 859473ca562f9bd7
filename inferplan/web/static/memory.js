// The memory of one accelerator as a bar: what fills it, what is left. Several bars have one scale.

import { colour } from "./scene.js";
import { bytes, percent } from "./units.js";

const COLOURS = { weights: "a", state: "b", activations: "c", reserve: "d" };
const CLASSES = { a: "of-0", b: "of-1", c: "of-2", d: "of-3" };
const TALL = 98;

/** Colour class of a part, for its swatch. */
export const colourOf = (name) => CLASSES[COLOURS[name]] ?? "other";

/** Bars `width` pixels wide under each other; each is `{ heading, parts, usable }`. */
export function memoryScene(bars, width) {
  const used = (bar) => bar.parts.reduce((sum, part) => sum + part.bytes, 0);
  const whole = Math.max(...bars.map((bar) => Math.max(bar.usable, used(bar))));
  const height = TALL * bars.length;
  const scale = (width - 16) / whole;
  const shapes = bars.flatMap((bar, index) => one(bar, scale, width, index * TALL));
  return {
    width,
    height,
    shapes: [{ rect: [0, 0, width, height], fill: colour("card") }, ...shapes],
    title: bars[0].heading,
  };
}

function one({ heading, parts, usable }, scale, width, top) {
  const left = 8;
  const [bar, words] = [top + 26, top + 51];
  const shapes = [{ rect: [left, bar, usable * scale, 40], fill: colour("free") }];
  let x = left;
  for (const part of parts) {
    const wide = part.bytes * scale;
    shapes.push({ rect: [x, bar, wide, 40], fill: colour(COLOURS[part.name] ?? "soft") });
    const text = percent(part.bytes / usable, 0);
    if (wide > 34)
      shapes.push({ text, at: [x + wide / 2, words], anchor: "middle", fill: colour("on-accent"), bold: true });
    x += wide;
  }
  const end = left + usable * scale;
  const free = usable - (x - left) / scale;
  if (end - x > 90)
    shapes.push({ text: `${bytes(free)} free`, at: [(x + end) / 2, words], anchor: "middle", fill: colour("ink") });
  shapes.push({
    line: [
      [end, top + 20],
      [end, top + 72],
    ],
    stroke: colour("ink"),
    width: 2,
  });
  const beside = end > width * 0.4 ? { at: [end, top + 88], anchor: "end" } : { at: [left, top + 88] };
  shapes.push({ text: `${bytes(usable)} usable`, ...beside, fill: colour("soft") });
  shapes.push({ text: heading, at: [left, top + 16], size: 13, fill: colour("soft") });
  return shapes;
}
