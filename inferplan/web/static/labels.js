// Names beside dots, none over another or over a dot: each takes the first free side, and where there is none it is left out.

const HEIGHT = 14;
/** Pixels of a text of 12 pixels, a little more than it takes. */
const wide = (text) => 6.8 * text.length;

/** The box of a text whose base line begins (or ends) at a place. */
function boxOf({ text, at: [x, y], anchor }) {
  const left = anchor === "end" ? x - wide(text) : x;
  return { left, right: left + wide(text), top: y - 11, bottom: y - 11 + HEIGHT };
}

const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;

/** The part of a dot that no text may cover. */
const core = ({ x, y, radius }) => ({
  left: x - 0.7 * radius,
  right: x + 0.7 * radius,
  top: y - 0.7 * radius,
  bottom: y + 0.7 * radius,
});

/**
 * Texts as shapes for those of `dots` that have a name, the largest first, each { x, y, radius, name } in pixels. They stay
 * in `box` and apart from each other, from the dots and from the texts `taken`.
 */
export function labels(dots, box, taken) {
  const boxes = [...taken.map(boxOf), ...dots.map(core)];
  const inside = (one) =>
    one.left >= box.left && one.right <= box.left + box.width && one.top >= box.top && one.bottom <= box.top + box.height;
  const named = dots.filter((dot) => dot.name).sort((one, other) => other.radius - one.radius);
  return named.flatMap(({ x, y, radius, name }) => {
    const [near, above, below] = [radius + 4, y - radius - 6, y + radius + 15];
    const sides = [
      { at: [x + near, y + 4], anchor: "start" },
      { at: [x - near, y + 4], anchor: "end" },
      { at: [x + radius, below], anchor: "end" },
      { at: [x - radius, below], anchor: "start" },
      { at: [x + radius, above], anchor: "end" },
      { at: [x - radius, above], anchor: "start" },
    ];
    const texts = sides.map((side) => ({ ...side, text: name }));
    const free = texts.find((text) => inside(boxOf(text)) && boxes.every((other) => apart(boxOf(text), other)));
    if (free) boxes.push(boxOf(free));
    return free ? [free] : [];
  });
}
