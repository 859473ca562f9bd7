// What stands behind a figure that was simulated: what it is, over how many requests, the command, and a way to the
// explanation of the same deployment's static estimate.

import { further, stated } from "./explain.js";
import { h } from "./dom.js";
import { count, time } from "./units.js";

/** Figures of a simulation, by their keys: their words in the glossary, and the number of a static estimate beside them. */
const OF = {
  ttft_s: { word: "TTFT", term: "ttft" },
  tpot_s: { word: "TPOT", term: "tpot" },
  itl_s: { word: "ITL" },
  e2el_s: { word: "end-to-end", term: "e2el" },
};

const command = (text) => ["Command", h("code", {}, text)];

/** What words of the glossary mean, as facts; of a percentile that has none nothing is said. */
export const meanings = (words, names) => names.filter((name) => words[name]).map((name) => [name, words[name]]);

/** Facts about a figure that is not of the plan's own run. */
export const told = ({ words, job }, names, rows) => [...meanings(words, names), ...rows, command(job.command)];

/** The figures of one simulation. `view`: the same deployment as options of an estimate, or null. */
export class Simulated {
  constructor(result, { words, job, view }) {
    Object.assign(this, { result, words, job, view: this.#still(result, view) });
  }

  /** The deployment as a static batch: the mean one of the run, of requests of mean length. */
  #still({ batch_mean: batch, throughput, conditions }, view) {
    const { requests_per_s: rate, output_tokens_per_s: output, total_tokens_per_s: total } = throughput;
    if (!view || !rate || !batch || conditions.generates === false) return null;
    const [prompt, written] = [(total - output) / rate, output / rate].map((tokens) => Math.max(Math.round(tokens), 1));
    return { prompt, output: written, ...view, batch: Math.max(Math.round(batch * (view.dp ?? 1)), 1) };
  }

  /** A number that says what the words `names` mean and what `rows(back)` say, over which requests, by which command. */
  number(text, name, names, rows = () => []) {
    return stated(text, name, (back) => [
      ...meanings(this.words, names),
      ["Value", text],
      ...rows(back),
      ["Requests", this.#counted()],
      command(this.job.command),
    ]);
  }

  /** A latency: `key` of the result, `at` a percentile or the mean. */
  latency(text, name, { key, at, rows = () => [] }) {
    const interval = this.result.intervals[key]?.[at];
    const { word, term } = OF[key];
    return this.number(text, name, [word, at], (back) => [
      ["95 % confidence interval", interval && interval.map((end) => time(end)).join(" to ")],
      ...rows(back),
      ["Static estimate", term && this.view && this.#estimate(term, back)],
    ]);
  }

  #estimate(term, back) {
    const { batch, prompt, output } = this.view;
    const text = `${term} of a batch of ${count(batch)}, ${count(prompt)} tokens in, ${count(output)} out`;
    return h("span", {}, further(text, { view: this.view, term }, back), ": without queue and other prompts");
  }

  /** Which requests were counted. */
  #counted() {
    const { requests, run } = this.result;
    const left = [
      run.warmup && `${count(run.warmup)} left out as warm-up`,
      run.cooldown && `${count(run.cooldown)} at the end`,
    ].filter(Boolean);
    return [
      `${count(requests.finished)} finished of ${count(requests.arrived)} that were counted; ${count(run.sent)} sent`,
      ...left,
    ].join(", ");
  }
}
