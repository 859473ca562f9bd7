// The few helpers that make elements. No markup is ever made from text: what the server says is text.

/** An element with attributes, listeners (`onclick`) and children; null and false are left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

/** New children for `container`; the focus stays on the element with the same `data-key`. */
export function fill(container, ...children) {
  const held = container.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  container.replaceChildren(...children.flat(3).filter(Boolean));
  if (held !== undefined) container.querySelector(`[data-key="${CSS.escape(held)}"]`)?.focus({ preventScroll: true });
}

/** Calls `run` once, `wait` milliseconds after the last call. */
export function settled(run, wait) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...values), wait);
  };
}

const idle = window.requestIdleCallback ?? ((run) => setTimeout(run, 30));
/** Milliseconds after which a card out of view is drawn at the latest. */
const LATEST = 300;

/** Draws cards: those in view at once, the others when the page has time, each as it was asked for last. */
export class Stage {
  #away = new Set();
  #left = new Map();
  #waits = false;

  constructor(...cards) {
    this.watch = new IntersectionObserver((seen) => {
      for (const { target, isIntersecting } of seen) {
        this.#away[isIntersecting ? "delete" : "add"](target);
        if (isIntersecting) this.#draw(target);
      }
    });
    for (const card of cards) this.watch.observe(card);
  }

  show(card, draw) {
    this.#left.set(card, draw);
    if (this.#away.has(card)) this.#later();
    else this.#draw(card);
  }

  #draw(card) {
    const draw = this.#left.get(card);
    this.#left.delete(card);
    draw?.();
  }

  #later() {
    if (this.#waits) return;
    this.#waits = true;
    const draw = () => {
      this.#waits = false;
      for (const card of [...this.#left.keys()]) this.#draw(card);
    };
    idle(draw, { timeout: LATEST });
  }
}

let spoken;
/** Says `text` to a screen reader, once things have come to rest. */
export function say(text) {
  clearTimeout(spoken);
  spoken = setTimeout(() => ($("#live").textContent = text), 700);
}

export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  const before = button.dataset.label ?? button.textContent;
  button.dataset.label = before;
  button.textContent = "Copied";
  say("Copied");
  setTimeout(() => (button.textContent = before), 1500);
}

export function save(name, content, type) {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** As inferplan/table.py: a text that a spreadsheet might compute begins with an apostrophe, a number is left alone. */
const HARMLESS = /^(-|[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)$/;
const harmless = (cell) => (/^[=+\-@\t\r\n＝＋－＠]/.test(cell) && !HARMLESS.test(cell) ? `'${cell}` : cell);
const quoted = (cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
export const csv = (rows) => rows.map((row) => row.map((cell) => quoted(harmless(String(cell ?? "")))).join(",") + "\n").join("");

/** A small button that saves `what` as `kind` by `run`. */
export const saving = (kind, what, run) =>
  h(
    "button",
    { type: "button", "aria-label": `${what}: save as ${kind}`, "data-key": `save ${what} ${kind}`, onclick: run },
    kind,
  );

/** A heading with small buttons beside it. */
export const heading = (title, ...buttons) => h("div", { class: "head" }, title, h("div", { class: "quiet" }, buttons));

/** A card of pictures with a list to choose from beside its heading: `show` draws what is chosen, `change` keeps it. */
export function choosable({ id, title, list, label, names, chosen, show, change }, pictures) {
  const select = h(
    "select",
    {
      id: list,
      onchange: () => {
        change(select.value);
        show(select.value);
      },
    },
    names.map((name) => h("option", { value: name, selected: name === chosen }, name)),
  );
  show(chosen);
  return h(
    "section",
    { class: "card", "aria-labelledby": id },
    h("div", { class: "head" }, h("h2", { id }, title), h("label", { class: "inline", for: list }, `${label} `, select)),
    pictures,
  );
}

/** A table: `columns` are texts, or `{ text, right }`; cells are texts, elements or whole cells; the first of a row names it. */
export function table(caption, columns, rows, attributes = {}) {
  const heads = columns.map((column) => (typeof column === "string" ? { text: column } : column));
  const side = (index) => (heads[index].right ? "right" : null);
  const cell = (value, index) =>
    value instanceof HTMLTableCellElement
      ? value
      : index === 0
        ? h("th", { scope: "row", class: side(0) }, value)
        : h("td", { class: side(index) }, value);
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption, ...attributes },
    h(
      "table",
      {},
      h("caption", {}, caption),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          heads.map((head, i) =>
            h("th", { scope: "col", class: side(i), "aria-sort": head.sort }, head.node ?? head.text),
          ),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) => h("tr", { class: row.class }, row.map(cell))),
      ),
    ),
  );
}
