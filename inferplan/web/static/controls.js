// The form beside the answer: what runs where, how it is divided, the load. It edits the deployment in hand.

import { combobox } from "./combobox.js";
import { $, $$, fill, h } from "./dom.js";
import { LETTERS, VIEW } from "./state.js";
import { bytes, count, parameters } from "./units.js";

/** Where a slider stops: 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20 ... */
export function notches(most) {
  const stops = [1, 2, 3];
  for (let step = 1; stops.at(-1) < most; step *= 2) for (const part of [4, 5, 6, 7]) stops.push(part * step);
  return stops.filter((stop) => stop <= most);
}

const MOST = { batch: 4096, prompt: 1_048_576, output: 131_072 };
const LEAST_CONTEXT = 4096;

/** Builds the form once. `hands` are: `view()`, `change(key, value)`, `catalog`, `views`, `select`, `add`, `remove`. */
export class Controls {
  constructor(hands) {
    this.hands = hands;
    const { catalog } = hands;
    this.models = catalog.models.map((model) => ({
      name: model.name,
      label: model.name,
      note: [
        `${parameters(model.parameters_total)} parameters`,
        model.context && `context ${count(model.context)}`,
        model.family,
      ]
        .filter(Boolean)
        .join(", "),
      also: model.aliases.join(" "),
    }));
    this.gpus = catalog.gpus.map((gpu) => ({
      name: gpu.name,
      label: gpu.name,
      note: `${gpu.label}, ${bytes(gpu.memory_bytes, 3)}`,
      also: [...gpu.aliases, gpu.vendor, gpu.vendor === "Apple" ? "mac" : ""].join(" "),
    }));
    this.set = {
      model: combobox(
        $('[data-combobox="model"]'),
        "model",
        () => this.models,
        (name) => hands.change("model", name),
      ),
      gpu: combobox(
        $('[data-combobox="gpu"]'),
        "gpu",
        () => this.gpus,
        (name) => hands.change("gpu", name),
      ),
    };
    this.#selects(catalog);
    for (const host of $$("[data-stepper]")) this.#stepper(host, host.dataset.stepper);
    for (const host of $$("[data-slider]")) this.#slider(host, host.dataset.slider);
    this.#number($("#price"), "price");
    $("#controls").addEventListener("submit", (event) => event.preventDefault());
  }

  #selects(catalog) {
    const engines = catalog.engines.flatMap((engine) => [
      engine.name,
      ...engine.versions.map((version) => `${engine.name}@${version}`),
    ]);
    const weights = catalog.weight_formats;
    const choices = { engine: engines, quant: weights, weights, activations: weights, kv: catalog.kv_formats };
    const usual = { engine: "the usual one, newest", quant: "as in the checkpoint" };
    for (const [key, names] of Object.entries(choices)) {
      const select = $(`#${key}`);
      select.append(
        h("option", { value: "" }, usual[key] ?? "as above"),
        ...names.map((name) => h("option", { value: name }, name)),
      );
      select.addEventListener("change", () => this.hands.change(key, select.value || undefined));
      this.set[key] = (value) => {
        if (value && ![...select.options].some((option) => option.value === value))
          select.append(h("option", { value }, value));
        select.value = value ?? "";
      };
    }
  }

  #stepper(host, key) {
    const input = h("input", { id: key, type: "number", min: "1", step: "1", inputmode: "numeric" });
    const move = (factor) => () => {
      const now = this.hands.view()[key] ?? 1;
      this.hands.change(key, factor > 1 ? now * 2 : Math.max(1, Math.floor(now / 2)));
    };
    const name = $("label", host).textContent.toLowerCase();
    const button = (sign, factor, word) =>
      h("button", { type: "button", onclick: move(factor), "aria-label": `${word} ${name}` }, sign);
    host.append(h("div", { class: "row" }, button("−", 0.5, "Halve"), input, button("+", 2, "Double")));
    this.#number(input, key, 1);
  }

  #slider(host, key) {
    const name = $("label", host).textContent;
    const range = h("input", { type: "range", min: "0", step: "1", "aria-label": `${name}: slider` });
    const input = h("input", { id: key, type: "number", min: "1", step: "1", inputmode: "numeric" });
    host.append(range, input);
    let stops = notches(MOST[key]);
    range.addEventListener("input", () => this.hands.change(key, stops[Number(range.value)]));
    this.#number(input, key);
    const shown = this.set[key];
    this.set[key] = (value) => {
      stops = notches(key === "batch" ? MOST.batch : Math.max(LEAST_CONTEXT, Math.min(MOST[key], this.#context())));
      range.max = String(stops.length - 1);
      const above = stops.findIndex((stop) => stop >= (value ?? 1));
      range.value = String(above < 0 ? stops.length - 1 : above);
      range.setAttribute("aria-valuetext", count(value ?? 1));
      shown(value);
    };
  }

  #context() {
    const model = this.hands.catalog.models.find((entry) => entry.name === this.hands.view().model);
    return model?.context ?? 131_072;
  }

  /** A number that is sent when it is one; what is not is said beside it and not sent. */
  #number(input, key, usual) {
    const wrong = h("div", { class: "wrong", id: `${key}-wrong` });
    input.addEventListener("input", () => {
      const value = input.value === "" ? undefined : VIEW[key].read(input.value);
      const fine =
        value !== undefined || (input.value === "" && !input.validity.badInput && (usual || key === "price"));
      this.#judge(input, wrong, fine);
      if (fine) this.hands.change(key, value);
    });
    input.addEventListener("blur", () => {
      this.set[key](this.hands.view()[key]);
      if (input.getAttribute("aria-invalid") === "true") this.#judge(input, wrong, false, `; it stays ${input.value || "as it was"}`);
    });
    this.set[key] = (value) => {
      if (document.activeElement !== input || VIEW[key].read(input.value) !== value) {
        if (document.activeElement !== input || (input.value !== "" && value !== undefined))
          input.value = value ?? usual ?? "";
      }
    };
  }

  #judge(input, wrong, fine, stays = "") {
    input.setAttribute("aria-invalid", String(!fine));
    if (fine) {
      wrong.remove();
      input.removeAttribute("aria-describedby");
      return;
    }
    wrong.textContent = VIEW[input.id].says + stays;
    input.setAttribute("aria-describedby", wrong.id);
    (input.closest(".row") ?? input).after(wrong);
  }

  /** Shows the deployment in hand, and of the form what the tab asks for. */
  show(tab) {
    const view = this.hands.view();
    for (const [key, set] of Object.entries(this.set)) set(view[key]);
    for (const part of $$("[data-for]")) part.hidden = !part.dataset.for.split(" ").includes(tab);
    const model = this.hands.catalog.models.find((entry) => entry.name === view.model);
    if (model?.generates === false) $('[data-slider="output"]').hidden = true;
    const dense = model && model.parameters_active === model.parameters_total;
    $('[data-stepper="ep"]').hidden = Boolean(dense && !view.ep);
    const formats = $("#formats");
    if (view.weights || view.activations || view.kv) formats.open = true;
    this.#deployments();
  }

  #deployments() {
    const { views, active } = this.hands.views();
    const chip = (view, index) =>
      h(
        "div",
        { class: `row of-${index}` },
        h(
          "button",
          {
            type: "button",
            "aria-pressed": String(index === active),
            "data-key": `deployment-${index}`,
            title: title(view),
            onclick: () => this.hands.select(index),
          },
          h("span", { class: "letter" }, LETTERS[index]),
          place(view),
        ),
        h(
          "button",
          {
            type: "button",
            class: "shut",
            "aria-label": `Remove deployment ${LETTERS[index]}`,
            onclick: () => this.hands.remove(index),
          },
          "×",
        ),
      );
    const add = h(
      "button",
      { type: "button", "data-key": "add", onclick: () => this.hands.add() },
      "+ Compare another",
    );
    const chips = views.length > 1 ? views.map(chip) : [];
    fill($("#deployments"), chips, views.length < LETTERS.length ? add : null);
  }
}

/** A deployment and its load in a line, for pictures that are saved. */
export const about = (view) =>
  `${title(view)}: batch ${count(view.batch)}, ${count(view.prompt)} tokens in, ${count(view.output)} out`;

/** A deployment in a few words. */
export const title = (view) => `${view.model} on ${place(view)}`;

function place(view) {
  const ranks = ["tp", "pp", "dp", "cp"].reduce((product, key) => product * (view[key] ?? 1), 1);
  const format = view.quant ?? view.weights;
  return `${ranks} × ${view.gpu}${format ? `, ${format}` : ""}`;
}
