// A search box with a list (the ARIA pattern "editable combobox with list autocomplete").

import { h } from "./dom.js";

/**
 * Fills `host` with a search box of the id `id`. `entries()` gives `{ name, label, note, also }`, `also` what else it is called; `choose(name)` is called
 * with what the user takes, or types and ends with Enter. Returns a function that sets the shown name.
 */
export function combobox(host, id, entries, choose) {
  const list = h("ul", { class: "options", role: "listbox", id: `${id}-list`, "aria-label": id, hidden: true });
  const input = h("input", {
    id,
    type: "text",
    role: "combobox",
    spellcheck: "false",
    autocapitalize: "none",
    "aria-autocomplete": "list",
    "aria-expanded": "false",
    "aria-controls": list.id,
  });
  const box = { input, list, entries, choose, shown: "", found: [], at: -1 };
  input.addEventListener("focus", () => input.select());
  input.addEventListener("click", () => open(box, list.hidden ? "" : input.value));
  input.addEventListener("input", () => open(box, input.value));
  input.addEventListener("keydown", (event) => pressed(box, event));
  input.addEventListener("blur", () => {
    shut(box);
    input.value = box.shown;
  });
  window.addEventListener("scroll", (event) => event.target !== list && shut(box), true);
  host.append(input, list);
  return (name) => {
    box.shown = name;
    if (document.activeElement !== input || list.hidden) input.value = name;
  };
}

/** A name of the hub without its owner and its variants, as `normalise` of inferplan/catalog/files.py has it. */
const ownName = (name) =>
  name.includes("/") ? name.replace(/^.*\/(meta-)?/, "").replace(/(-(hf|instruct|chat|base|it))+$/, "") : name;

/** Entries that hold every word of `query`, in any of their names, or all of it without blanks and dashes; those that begin with it come first. */
export function matching(entries, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (entry) => `${entry.name} ${entry.label} ${entry.note} ${entry.also ?? ""}`.toLowerCase();
  const bare = (written) => written.replace(/[^a-z0-9]/g, "");
  const whole = bare(ownName(query.toLowerCase()));
  const holds = (held) => words.every((word) => held.includes(word)) || (whole.length > 2 && bare(held).includes(whole));
  const found = entries.filter((entry) => holds(text(entry)));
  const rank = (entry) => (entry.name === query ? 0 : entry.name.startsWith(words[0] ?? "") ? 1 : 2);
  return words.length ? found.sort((left, right) => rank(left) - rank(right)) : found;
}

function open(box, query) {
  box.found = matching(box.entries(), query);
  box.list.replaceChildren(
    ...(box.found.length
      ? box.found.map((entry, index) => option(box, entry, index))
      : [h("li", { class: "none" }, "No such name on file; Enter asks the server")]),
  );
  const edge = box.input.getBoundingClientRect();
  Object.assign(box.list.style, { left: `${edge.left}px`, top: `${edge.bottom + 3}px`, width: `${edge.width}px` });
  box.list.style.maxHeight = `${Math.max(140, Math.min(320, window.innerHeight - edge.bottom - 12))}px`;
  box.list.hidden = false;
  box.input.setAttribute("aria-expanded", "true");
  mark(box, query === "" ? box.found.findIndex((entry) => entry.name === box.shown) : 0);
}

function option(box, entry, index) {
  const item = h(
    "li",
    { role: "option", id: `${box.input.id}-${index}`, "aria-selected": "false" },
    entry.label || entry.name,
  );
  if (entry.note) item.append(h("small", {}, entry.note));
  item.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    take(box, entry.name);
  });
  return item;
}

function mark(box, index) {
  box.list.children[box.at]?.setAttribute("aria-selected", "false");
  box.at = box.found.length ? Math.max(-1, Math.min(box.found.length - 1, index)) : -1;
  const item = box.at < 0 ? null : box.list.children[box.at];
  item?.setAttribute("aria-selected", "true");
  item?.scrollIntoView({ block: "nearest" });
  if (item) box.input.setAttribute("aria-activedescendant", item.id);
  else box.input.removeAttribute("aria-activedescendant");
}

function shut(box) {
  box.list.hidden = true;
  box.input.setAttribute("aria-expanded", "false");
  box.input.removeAttribute("aria-activedescendant");
}

function take(box, name) {
  shut(box);
  box.shown = name;
  box.input.value = name;
  box.choose(name);
}

const STEPS = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 };

function pressed(box, event) {
  const { input, list } = box;
  if (event.key in STEPS) {
    event.preventDefault();
    if (list.hidden) open(box, "");
    else mark(box, Math.max(0, box.at + STEPS[event.key]));
  } else if (event.key === "Enter") {
    event.preventDefault();
    const name = list.hidden || box.at < 0 ? input.value.trim() : box.found[box.at].name;
    if (name) take(box, name);
  } else if (event.key === "Escape" && !list.hidden) {
    event.preventDefault();
    shut(box);
    input.value = box.shown;
  }
}
