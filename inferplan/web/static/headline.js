// The answer first: does it fit, how fast, what it costs, how sure that is.

import { title } from "./controls.js";
import { h } from "./dom.js";
import { answer, figure, figureButton, figuresOf, sold } from "./figures.js";
import { bytes, count, percent, time } from "./units.js";

const within = (record, key) =>
  record[`${key}_low_s`] == null
    ? "no error band: no similar system was measured"
    : `80 % of measurements: ${time(record[`${key}_low_s`])} to ${time(record[`${key}_high_s`])}`;

/** A load in words, of which `output` may be unknown. */
const loaded = (batch, prompt, output) =>
  `batch ${count(batch)}, ${count(prompt)} tokens in${output ? `, ${count(output)} out` : ""}`;

/** The load that a view asks for, in words. */
export const loadOf = ({ batch = 1, prompt = 1024, output = 256 }) => loaded(batch, prompt, output);

/** What is answered: the deployment and its load. */
export const heading = (view, load) =>
  h("div", { class: "title" }, h("h2", {}, title(view)), h("span", { class: "soft" }, load));

/** The nodes of the headline, and what of it is said to a screen reader. */
export function headline(reply, view) {
  const found = reply.estimate;
  const all = figuresOf(reply);
  const value = (one) => figureButton(one, view);
  const { batch, prompt_tokens: prompt, output_tokens: output } = found.load;
  const fits = found.memory.fits && !found.rejected_because;
  const verdict = h(
    "span",
    { class: fits ? "good" : "bad" },
    fits ? "Fits" : found.memory.fits ? "The engine rejects it" : "Does not fit",
  );
  const held = h(
    "span",
    {},
    value(all.fits),
    ` of ${bytes(found.memory.usable_bytes)} on ${found.devices === 1 ? "the accelerator" : `each of ${count(found.devices)} accelerators`}`,
  );
  const largest = h(
    "span",
    {},
    "largest batch ",
    value(all.batch),
    all.context ? [", longest context ", value(all.context)] : "",
  );
  return {
    spoken: `${verdict.textContent}. ${Object.values(all)
      .filter(Boolean)
      .slice(1, 6)
      .map((one) => `${one.name} ${one.text}`)
      .join(". ")}`,
    nodes: [
      heading(view, loaded(batch, prompt, found.generates && output)),
      answer(
        figure("Memory", verdict, held, largest, found.rejected_because),
        speeds(found, all, value),
        price(reply, all, value),
        alone(found, all, value),
        basis(found),
      ),
      reply.notes.length > 0 &&
        h(
          "details",
          {},
          h("summary", {}, `What the figures rest on (${reply.notes.length} notes)`),
          h(
            "ul",
            { class: "notes" },
            reply.notes.map((note) => h("li", {}, note)),
          ),
        ),
    ],
  };
}

const alone = (found, all, value) =>
  figure(
    `${found.generates ? "TTFT" : "Latency"} of the batch alone`,
    value(all.alone),
    found.generates && "the whole batch prefilled together",
    within(found, "ttft"),
  );

/** Latencies and throughput. */
function speeds(found, all, value) {
  return [
    found.ttft_at_server_s !== null &&
      figure(
        `${found.generates ? "Time to first token (TTFT)" : "Latency"} at the server`,
        value(all.server),
        "one request, idle server",
        within(found, "ttft_at_server"),
      ),
    all.tpot &&
      figure(
        "Time per output token (TPOT)",
        value(all.tpot),
        h("span", {}, value(all.user), " tokens/s per user"),
        within(found, "tpot"),
      ),
    all.rate &&
      figure("Output tokens per second", value(all.rate), all.total && h("span", {}, "total latency ", value(all.total))),
  ];
}

function price(reply, all, value) {
  const { cost } = reply;
  return cost
    ? figure(
        "Cost per hour",
        value(all.hour),
        h("span", {}, value(all.million), " per million tokens, in and out"),
        `${sold(cost)}, ${[cost.price_source, cost.price_date].filter(Boolean).join(", ")}`,
      )
    : figure("Cost per hour", "no price", reply.cost_why);
}

function basis(found) {
  const shares = Object.entries(found.basis_shares).map(
    ([phase, parts]) =>
      `${phase}: ${Object.entries(parts)
        .sort((l, r) => r[1] - l[1])
        .map(([name, share]) => `${name} ${percent(share, 0)}`)
        .join(", ")}`,
  );
  return figure(
    "Error band and basis",
    found.tpot_low_s == null && found.ttft_low_s == null ? "no band" : widest(found),
    `${found.basis}${found.calibration ? `, constants of ${found.calibration}` : ""}`,
    shares.join("; "),
  );
}

/** The wider side of the band, as a percentage of the figure it belongs to. */
function widest(found) {
  const key = found.tpot_low_s == null ? "ttft" : "tpot";
  const middle = found[`${key}_s`];
  const [low, high] = [found[`${key}_low_s`] / middle - 1, found[`${key}_high_s`] / middle - 1];
  const signed = (share) => `${share < 0 ? "−" : "+"}${percent(Math.abs(share), 0)}`;
  return `${signed(low)} to ${signed(high)}`;
}
