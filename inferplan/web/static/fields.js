// Fields of the forms inside a tab, made from a list; each writes one key of the state.

import { h } from "./dom.js";

/**
 * Nodes for `specs`: { key, label, kind: "number" | "text" | "select" | "choice", options?, placeholder?, when?(values) }.
 * `read` is the table of the state's keys, `prefix` makes ids. Returns `{ nodes, show(values) }`.
 */
export function fields(specs, { prefix, read, change }) {
  const made = specs.map((spec) => ({
    spec,
    ...MAKERS[spec.kind](spec, { id: `${prefix}-${spec.key}`, read: read[spec.key], change }),
  }));
  return {
    nodes: made.map(({ node }) => node),
    show(values) {
      for (const { spec, node, set } of made) {
        node.hidden = Boolean(spec.when && !spec.when(values));
        set(values[spec.key]);
      }
    },
  };
}

/** How much comes: people, requests per second, or so many in flight, whose number the key `flight` holds. */
export function load(label, flight) {
  const paced = (values) => values.load === "people" || values.load === flight;
  return [
    {
      key: "load",
      label,
      kind: "choice",
      options: [
        ["rate", "requests per second"],
        ["people", "people"],
        [flight, "requests in flight"],
      ],
    },
    {
      key: "rate",
      label: "Requests per second",
      kind: "number",
      whole: false,
      when: (values) => values.load === "rate",
    },
    {
      key: "people",
      label: "People at work in the busy hour (they read and type between answers)",
      kind: "number",
      when: (values) => values.load === "people",
    },
    {
      key: flight,
      label: "Requests in flight at all times",
      kind: "number",
      when: (values) => values.load === flight,
    },
    {
      key: "think",
      label: "Seconds from an answer to the next request",
      kind: "number",
      whole: false,
      placeholder: "of the workload; in flight: 0",
      when: paced,
    },
    {
      key: "daily",
      label: "Conversations per person per day",
      kind: "number",
      whole: false,
      placeholder: "all in one conversation for the whole hour",
      when: (values) => values.load === "people",
    },
  ];
}

/** The load that was chosen as options, or what is missing in words. */
export function loadOptions(asked) {
  const key = asked.load ?? "rate";
  if (!asked[key])
    return { rate: "How many requests per second?", people: "How many people?" }[key] ?? "How many requests in flight?";
  const name = key === "rate" || key === "people" ? key : "in-flight";
  return {
    [name]: asked[key],
    ...(key !== "rate" && asked.think && { "think-time": `${asked.think}s` }),
    ...(key === "people" && asked.daily && { "sessions-a-day": asked.daily }),
  };
}

/** Limits on latencies, in milliseconds; `placeholder` says what holds without one. */
export const limits = (placeholder) =>
  [
    ["ttft", "Limit on the time to first token, ms"],
    ["tpot", "Limit on the time per output token, ms"],
    ["e2e", "Limit on the whole answer, ms"],
  ].map(([key, label]) => ({ key, label, kind: "number", whole: false, placeholder }));

/** The limits as options. */
export const limitOptions = (asked) =>
  Object.fromEntries(["ttft", "tpot", "e2e"].map((key) => [key, asked[key] && `${asked[key]}ms`]));

const MAKERS = {
  number(spec, { id, read, change }) {
    const wrong = h(
      "div",
      { class: "wrong", id: `${id}-wrong`, hidden: true },
      read.says,
    );
    const input = h("input", {
      id,
      type: "number",
      min: "0",
      step: spec.whole === false ? "any" : "1",
      inputmode: spec.whole === false ? "decimal" : "numeric",
      placeholder: spec.placeholder,
      "aria-describedby": wrong.id,
    });
    input.addEventListener("input", () => {
      const value = input.value === "" ? undefined : read.read(input.value);
      const fine = value !== undefined || (input.value === "" && !input.validity.badInput);
      wrong.hidden = fine;
      input.setAttribute("aria-invalid", String(!fine));
      if (fine) change(spec.key, value);
    });
    const set = (value) => {
      if (document.activeElement !== input) input.value = value ?? "";
    };
    return { node: h("div", { class: "field" }, h("label", { for: id }, spec.label), input, wrong), set };
  },
  text(spec, { id, read, change }) {
    const input = h("input", {
      id,
      type: "text",
      spellcheck: "false",
      autocapitalize: "none",
      placeholder: spec.placeholder,
    });
    input.addEventListener("input", () =>
      change(spec.key, input.value.trim() === "" ? undefined : read.read(input.value.trim())),
    );
    const set = (value) => {
      if (document.activeElement !== input) input.value = value ?? "";
    };
    return { node: h("div", { class: "field" }, h("label", { for: id }, spec.label), input), set };
  },
  select(spec, { id, read, change }) {
    const options = spec.options.map(([value, text]) => h("option", { value }, text));
    const select = h(
      "select",
      { id, onchange: () => change(spec.key, select.value === "" ? undefined : read.read(select.value)) },
      options,
    );
    const set = (value) => (select.value = value ?? "");
    return { node: h("div", { class: "field" }, h("label", { for: id }, spec.label), select), set };
  },
  choice(spec, { id, change }) {
    const radios = spec.options.map(([value, text]) => {
      const radio = h("input", {
        type: "radio",
        name: id,
        id: `${id}-${value}`,
        value,
        onchange: () => change(spec.key, value),
      });
      return { radio, label: h("label", {}, radio, text) };
    });
    const set = (value) => radios.forEach(({ radio }) => (radio.checked = radio.value === value));
    return {
      node: h(
        "fieldset",
        { class: "field plain" },
        h("legend", { class: "label" }, spec.label),
        h(
          "div",
          { class: "choice" },
          radios.map(({ label }) => label),
        ),
      ),
      set,
    };
  },
};
