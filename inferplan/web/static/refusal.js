// What cannot be answered, in the words of the server, with the hint as a button where it is an option of the page.

import { Malformed, Refusal } from "./api.js";
import { h } from "./dom.js";
import { VIEW } from "./state.js";

/** Options of the form that a hint names: "--tp 2" is `["tp", 2]`. */
export function remedies(hint) {
  const found = [];
  for (const [, name, text] of hint.matchAll(/--([a-z]+) ([\w@.]+)/g)) {
    const value = name === "price" ? undefined : VIEW[name]?.read(text);
    if (value !== undefined) found.push([name, value]);
  }
  return found;
}

/** A card for an error; `apply(key, value)` follows a hint, `again()` asks once more. */
export function refusalCard(error, { apply, again } = {}) {
  const offered = apply && error instanceof Refusal ? remedies(error.hint) : [];
  const malformed = error instanceof Malformed;
  return h(
    "section",
    { class: "card refusal", "aria-label": "Refusal" },
    h("h3", {}, malformed ? "The answer cannot be read" : (error.what ?? error.message)),
    error.because && h("p", {}, "Because ", error.because),
    error.picture && h("pre", {}, error.picture),
    malformed
      ? h("p", {}, "Page and server may have different versions: reload the page.")
      : error.hint && h("p", {}, "Hint: ", h("code", {}, error.hint)),
    (offered.length > 0 || again) &&
      h(
        "div",
        { class: "row" },
        offered.map(([key, value]) =>
          h(
            "button",
            { type: "button", class: "main", "data-key": `apply-${key}-${value}`, onclick: () => apply(key, value) },
            `Use --${key} ${value}`,
          ),
        ),
        again && h("button", { type: "button", onclick: again }, "Ask again"),
      ),
  );
}
