// The frame around a picture: its caption, its buttons (PNG, SVG, CSV) and the table behind it.

import { Chart } from "./chart.js";
import { csv, fill, h, heading, save, saving, table } from "./dom.js";
import { captioned, savePicture, svgNode } from "./scene.js";

/**
 * A figure with a heading. `update({ caption, scene, rows, columns, legend, about })` fills it: `rows` and `columns` are the
 * table behind the picture and its CSV, which is of `all` rows, below `heads`, where the table shows others.
 */
export class Picture {
  constructor(name, title, body, open = false) {
    this.name = name;
    this.heading = title;
    this.caption = h("figcaption");
    this.legend = h("ul", { class: "legend", "aria-hidden": "true" });
    this.behind = h("div");
    this.node = h(
      "figure",
      { class: "chart", id: `picture-${name}` },
      heading(
        h("h3", {}, title),
        saving("PNG", title, () => savePicture(this.#whole(), name, "png")),
        saving("SVG", title, () => savePicture(this.#whole(), name, "svg")),
        saving("CSV", title, () => save(`${name}.csv`, csv([this.heads, ...this.all]), "text/csv")),
      ),
      this.legend,
      body,
      this.caption,
      (this.details = h("details", { open, ontoggle: () => this.#table() }, h("summary", {}, "Table"), this.behind)),
    );
  }

  #whole() {
    return captioned(this.scene(), this.named, this.about);
  }

  update({ caption, scene, columns, rows, all, heads, legend = [], about = "" }) {
    const names = heads ?? columns.map((column) => column.text ?? column);
    Object.assign(this, { scene, columns, rows, all: all ?? rows, heads: names, named: legend, about });
    this.caption.textContent = caption ?? "";
    fill(
      this.legend,
      legend.map(({ name, of, round }) =>
        h("li", { class: of }, h("span", { class: `swatch${round ? " round" : ""}` }), name),
      ),
    );
    this.#table();
  }

  /** The table behind the picture, made when it is seen. */
  #table() {
    if (!this.details.open || !this.rows) return;
    const heads = this.columns.map((column, index) => (column.text ? column : { text: column, right: index > 0 }));
    fill(this.behind, table(this.heading, heads, this.rows, { class: "scroll limited" }));
  }
}

/** A picture that uPlot draws. */
export class Plotted extends Picture {
  constructor(name, heading, sync) {
    const host = h("div", { class: "plot" });
    super(name, heading, host);
    this.chart = new Chart(host, sync);
    host.after(this.chart.readout);
  }

  show(spec, around) {
    this.chart.show(spec);
    this.update({ ...around, scene: () => this.chart.scene(this.heading) });
  }
}

/** A picture of shapes, drawn as wide as it stands: as last observed, because to ask for it lays out the whole page. */
export class Drawn extends Picture {
  constructor(name, heading, open) {
    const host = h("div");
    super(name, heading, host, open);
    this.host = host;
    this.watch = new ResizeObserver(([{ contentRect }]) => {
      if (contentRect.width === this.width) return;
      this.width = contentRect.width;
      if (this.redraw) this.#draw();
    });
    this.watch.observe(host);
  }

  show(redraw, around) {
    this.redraw = redraw;
    this.update({ ...around, scene: () => redraw(this.width || 600) });
    this.#draw();
  }

  #draw() {
    const scene = this.redraw(this.width || 600);
    fill(this.host, svgNode(scene, `${this.heading}: ${scene.title}`));
  }
}
