// The page: what is chosen, what is asked of the server, where the answers go.

import { Channel, Malformed, Refusal, Unreachable, ask, checked } from "./api.js";
import { EstimateTab, SHAPE as VIEW_SHAPE } from "./answer.js";
import { CompareTab } from "./compare.js";
import { Controls } from "./controls.js";
import { DayTab } from "./day.js";
import { $, copy, fill, h, settled } from "./dom.js";
import { figuresOf } from "./figures.js";
import { FitTab } from "./fit.js";
import { PlanTab } from "./plan.js";
import { refusalCard } from "./refusal.js";
import { forgetColours } from "./scene.js";
import { SimulateTab } from "./simulate.js";
import { TABS, read, write } from "./state.js";

const CATALOG_SHAPE = {
  version: "string",
  models: "array",
  gpus: "array",
  engines: "array",
  workloads: "array",
  profiles: "array",
  weight_formats: "array",
  kv_formats: "array",
};
const LONG = 200;
/** Tabs whose answer is a job. */
const JOBS = ["fit", "simulate", "plan", "day"];

/** The body that asks for a view: a deployment and its load, by the options of the command line. */
const body = ({ price, ...view }) => (price === undefined ? view : { ...view, price: `${view.gpu}=${price}` });

class App {
  constructor() {
    const { state, wrong } = read(location.hash.slice(1));
    Object.assign(this, { state, wrong, tries: 0 });
    this.write = () => history.replaceState(null, "", `#${write(this.state)}`);
    this.link = settled(this.write, 150);
    window.addEventListener("hashchange", () => this.#fromLink());
    this.#chrome();
    this.#load();
  }

  get view() {
    return this.state.views[this.state.active];
  }

  async #load() {
    try {
      this.catalog = checked("/api/catalog", await ask("GET", "/api/catalog"), CATALOG_SHAPE);
    } catch (error) {
      if (error instanceof Unreachable) this.lost(() => this.#load());
      else fill($("#panel"), refusalCard(error, { again: () => this.#load() }));
      return;
    }
    this.found();
    $("#foot").textContent =
      `inferplan ${this.catalog.version}: ${this.catalog.models.length} models, ${this.catalog.gpus.length} accelerators on file. Nothing on this page leaves this machine's server.`;
    this.#build();
    this.show();
    if (this.wrong.length) this.#leftOut();
  }

  #build() {
    const hands = {
      catalog: this.catalog,
      view: () => this.view,
      views: () => this.state,
      change: (key, value) => this.change(key, value),
      select: (index) => this.#with(() => (this.state.active = index)),
      add: () => this.add(),
      remove: (index) => this.#remove(index),
    };
    this.controls = new Controls(hands);
    const again = () => {
      this.asked = {};
      this.ask();
    };
    const tool = (name) => (key, value) => this.#with(() => put(this.state[name], key, value));
    const lost = (retry) => this.lost(retry);
    const api = (price) => this.#with(() => put(this.state, "api", price));
    this.tabs = {
      estimate: new EstimateTab({ change: hands.change, api, again }),
      compare: new CompareTab({ add: hands.add, again }),
      fit: new FitTab({ change: tool("fit"), use: (row) => this.#use(row), apply: hands.change, lost, catalog: this.catalog }),
      simulate: new SimulateTab({ change: tool("simulate"), apply: hands.change, lost, catalog: this.catalog }),
      plan: new PlanTab({ change: tool("plan"), api, lost, catalog: this.catalog, gpus: this.controls.gpus }),
      day: new DayTab({ change: tool("day"), apply: hands.change, lost, catalog: this.catalog }),
    };
    for (const name of JOBS) this.tabs[name].job.resume();
    this.channels = {
      estimate: this.#channel("estimate", "/api/view", (reply, path) => checked(path, reply, VIEW_SHAPE)),
      compare: this.#channel("compare", "/api/compare", compared),
    };
  }

  #channel(name, path, check) {
    return new Channel(
      async (asked) => check(await ask("POST", path, asked.body), path),
      (reply, asked) => {
        this.found();
        this.#wait(name, false);
        this.tabs[name].show(reply, asked.shown);
        if (name === "estimate") this.#strip(reply);
      },
      (error, asked) => {
        this.#wait(name, false);
        if (error instanceof Unreachable) return this.lost(() => this.ask(), name);
        if (!(error instanceof Refusal || error instanceof Malformed)) throw error;
        this.found();
        this.tabs[name].fail(error, asked.shown);
        if (name === "estimate") this.#strip(null, error);
        return null;
      },
    );
  }

  /** Something of the deployment in hand changes. */
  change(key, value) {
    this.#with(() => {
      if (key === "gpu" && value !== this.view.gpu) delete this.view.price;
      put(this.view, key, value);
    });
  }

  #with(run) {
    run();
    this.link();
    this.show();
  }

  add() {
    this.#with(() => {
      this.state.views.push({ ...this.view });
      this.state.active = this.state.views.length - 1;
      this.state.tab = "compare";
    });
    $("#gpu").focus();
  }

  #remove(index) {
    this.#with(() => {
      this.state.views.splice(index, 1);
      this.state.active = Math.min(this.state.active, this.state.views.length - 1);
    });
  }

  /** A row of the fit becomes the deployment in hand. */
  #use(row) {
    this.#with(() => {
      for (const key of ["quant", "weights", "activations", "kv", "pp", "dp", "ep", "cp", "price"])
        delete this.view[key];
      Object.assign(this.view, {
        gpu: row.gpu,
        tp: row.parallel?.tp ?? row.devices,
        ...(row.quant === "native" ? {} : { quant: row.quant }),
      });
      this.state.tab = "estimate";
    });
    $("#panel").focus();
  }

  /** Draws what is chosen, and asks for what belongs to it. */
  show() {
    const { tab } = this.state;
    for (const name of TABS) {
      const button = $(`#tab-${name}`);
      button.setAttribute("aria-selected", String(name === tab));
      button.tabIndex = name === tab ? 0 : -1;
    }
    const panel = $("#panel");
    panel.setAttribute("aria-labelledby", `tab-${tab}`);
    if (this.drawn !== tab) {
      panel.replaceChildren(...this.tabs[tab].node);
      if (this.drawn) this.write();
      this.drawn = tab;
    }
    document.title = `${this.view.model} on ${this.view.gpu}: ${tab} – inferplan`;
    this.controls.show(tab);
    this.tabs[tab].set?.(this.state);
    $("#strip").hidden = tab !== "estimate";
    this.ask();
  }

  /** Asks for the tab that is shown; the same question is not asked twice in a row. */
  ask() {
    const { tab, views } = this.state;
    const channel = this.channels[tab];
    if (!channel) return;
    const asked = {
      estimate: () => ({ body: body(this.view), shown: { ...this.view } }),
      compare: () => ({ body: { views: views.map(body) }, shown: views.map((view) => ({ ...view })) }),
    }[tab]();
    const key = JSON.stringify(asked);
    if (this.asked?.[tab] === key && !this.isLost) return;
    this.asked = { ...this.asked, [tab]: key };
    this.#wait(tab, true);
    channel.ask(asked);
  }

  #wait(name, waiting) {
    if (this.state.tab !== name) return;
    $("#panel").setAttribute("aria-busy", String(waiting));
    clearTimeout(this.late);
    if (waiting) this.late = setTimeout(() => this.tabs[name].wait(true), LONG);
    else this.tabs[name].wait(false);
  }

  /** Nobody answers: says so, keeps everything, tries again by itself and on request. */
  lost(retry, name) {
    this.isLost = true;
    this.tries += 1;
    if (name) this.asked = { ...this.asked, [name]: undefined };
    const wait = Math.min(15, 2 ** this.tries);
    clearTimeout(this.retry);
    const now = () => {
      clearTimeout(this.retry);
      retry();
    };
    this.retry = setTimeout(now, wait * 1000);
    const words = `The page shows the last answer. Your choices are kept, here and in the address. Next try in ${wait} s.`;
    this.#notice(
      "The server does not answer",
      words,
      h("button", { type: "button", class: "main", "data-key": "retry", onclick: now }, "Try again now"),
    );
  }

  found() {
    if (this.isLost) $("#notice").hidden = true;
    this.isLost = false;
    this.tries = 0;
    clearTimeout(this.retry);
  }

  #leftOut() {
    const shut = h("button", { type: "button", onclick: () => ($("#notice").hidden = true) }, "Close");
    this.#notice(
      "Part of this link cannot be read",
      `Left out: ${this.wrong.slice(0, 8).join(", ").slice(0, 400)}`,
      shut,
    );
  }

  #notice(heading, words, button) {
    const notice = $("#notice");
    fill(notice, h("strong", {}, heading), h("p", {}, words), h("div", { class: "row" }, button));
    notice.hidden = false;
  }

  #strip(reply, error) {
    const word = (name, text) => h("span", {}, `${name} `, h("b", {}, text));
    if (error) return fill($("#strip"), h("b", {}, error.what ?? "No answer"));
    const all = figuresOf(reply);
    const shown = [
      ["TTFT", all.server?.value == null ? all.alone : all.server],
      ["TPOT", all.tpot],
      ["tok/s", all.rate],
    ];
    return fill(
      $("#strip"),
      h("b", {}, reply.estimate.memory.fits ? "Fits" : "Does not fit"),
      shown.filter(([, one]) => one).map(([name, one]) => word(name, one.text)),
    );
  }

  #fromLink() {
    const fragment = location.hash.slice(1);
    if (fragment === write(this.state) || !this.tabs) return;
    const { state, wrong } = read(fragment);
    Object.assign(this, { state, wrong });
    this.show();
    if (wrong.length) this.#leftOut();
  }

  #chrome() {
    $("#skip").addEventListener("click", () => $("#panel").focus());
    $("#copy-link").addEventListener("click", (event) => {
      this.write();
      copy(location.href, event.currentTarget);
    });
    const theme = $("#theme");
    theme.value = document.documentElement.dataset.theme ?? "";
    theme.addEventListener("change", () => {
      localStorage.setItem("inferplan-theme", theme.value);
      if (theme.value) document.documentElement.dataset.theme = theme.value;
      else delete document.documentElement.dataset.theme;
      this.#repaint();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#repaint());
    for (const name of TABS)
      $(`#tab-${name}`).addEventListener("click", () => this.tabs && this.#with(() => (this.state.tab = name)));
    $(".tabs").addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step || !this.tabs) return;
      const next = TABS[(TABS.indexOf(this.state.tab) + step + TABS.length) % TABS.length];
      this.#with(() => (this.state.tab = next));
      $(`#tab-${next}`).focus();
    });
  }

  /** Colours of pictures are pixels: they are drawn anew. */
  #repaint() {
    forgetColours();
    this.asked = {};
    if (!this.tabs) return;
    this.ask();
    for (const name of JOBS) this.tabs[name].job.redraw();
  }
}

function put(home, key, value) {
  if (value === undefined) delete home[key];
  else home[key] = value;
}

function compared(reply, path) {
  if (!Array.isArray(reply)) throw new Malformed(`the answer of ${path} is no list`);
  for (const one of reply) if (!one.error) checked(path, one, VIEW_SHAPE);
  return reply;
}

new App();
