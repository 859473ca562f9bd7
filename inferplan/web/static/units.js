// Numbers as the command line prints them (inferplan/units.py): the same digits, the same prefixes.

const UP = [
  [1e18, "E"],
  [1e15, "P"],
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
  [1, ""],
];
const DOWN = [
  [1, ""],
  [1e-3, "m"],
  [1e-6, "u"],
  [1e-9, "n"],
];

/** `value` with a fixed number of decimals; an exact half goes to the even digit, as in Python, not up. */
export function fixed(value, decimals) {
  const up = value.toFixed(decimals);
  if (!/\.\d+$/.test(value.toFixed(Math.min(100, decimals + 30)))) return up;
  const exact = value.toFixed(Math.min(100, decimals + 30));
  const rest = exact.slice(exact.length - Math.min(100 - decimals, 30));
  if (!/^50*$/.test(rest)) return up;
  const down = exact.slice(0, exact.length - rest.length).replace(/\.$/, "");
  return Number(down.at(-1)) % 2 === 0 ? down : up;
}

/** Thousands apart by commas. */
export function grouped(text) {
  const [whole, rest] = text.split(".");
  return whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",") + (rest === undefined ? "" : `.${rest}`);
}

function engineering(value, unit, steps, digits) {
  if (value === 0 || !Number.isFinite(value)) return `${value} ${unit}`;
  const one = 1 - 0.5 * 10 ** -digits;
  const [factor, prefix] = steps.find(([step]) => Math.abs(value) >= step * one) ?? steps.at(-1);
  const scaled = value / factor;
  const size = Math.abs(scaled) >= one ? Math.max(Math.abs(scaled), 1) : Math.abs(scaled);
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return `${grouped(fixed(scaled, decimals))} ${prefix}${unit}`;
}

/** Seconds as s, ms, us or ns with four digits. */
export const time = (seconds, digits = 4) => (seconds === null ? "–" : engineering(seconds, "s", DOWN, digits));
/** Bytes with decimal prefixes: GB is 1e9. */
export const bytes = (value, digits = 4) => engineering(value, "B", UP, digits);
/** Any quantity with decimal prefixes. */
export function quantity(value, unit, digits = 4) {
  const one = 1 - 0.5 * 10 ** -digits;
  return engineering(value, unit, value !== 0 && Math.abs(value) < one ? [...UP, ...DOWN.slice(1)] : UP, digits);
}
/** Whole numbers with commas. */
export const count = (value) => grouped(fixed(value, 0));
export const decimal = (value, decimals) => grouped(fixed(value, decimals));
export const percent = (share, decimals = 1) => `${decimal(share * 100, decimals)}%`;
/** Parameters: "70.6 billion". */
export function parameters(value) {
  const [step, word] = [
    [1e12, "trillion"],
    [1e9, "billion"],
    [1e6, "million"],
    [1, ""],
  ].find(([s]) => value >= s);
  return `${Number((value / step).toPrecision(3))} ${word}`.trim();
}
/** Money: two decimals, and below one unit four, unless it is a price of an hour. */
export const money = (value, currency, decimals = Math.abs(value) < 1 ? 4 : 2) =>
  `${decimal(value, decimals)} ${currency}`;

/** A tick of an axis: three digits, no zeros behind. */
function short(text) {
  return text.replace(/(\.\d*?)0+(?= |$)/, "$1").replace(/\.(?= |$)/, "");
}
export const shortTime = (seconds) => short(time(seconds, 3));
export const shortQuantity = (value, unit) => short(quantity(value, unit, 3)).trim();
