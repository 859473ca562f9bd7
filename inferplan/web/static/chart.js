// Curves and scattered points over two axes, drawn by uPlot; the same picture as a list of shapes for a file.

import { h } from "./dom.js";
import { colour, dot } from "./scene.js";
import { labels } from "./labels.js";
import uPlot from "./vendor/uPlot.esm.js";

const HEIGHT = 250;
const font = (size) => `${size}px system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif`;

/** `rgb(1, 2, 3)` with an opacity. */
const faded = (rgb, alpha) => rgb.replace(/^rgb\((.*)\)$/, `rgba($1, ${alpha})`);

/** An axis of y on the right: its ticks are whole multiples of `every`, at most eight. */
function rightAxis(axis, every) {
  const splits = (_, index, least, most) => {
    const step = every * Math.ceil(most / every / 8);
    return Array.from({ length: Math.floor(most / step) + 1 }, (__, place) => place * step);
  };
  return { ...axis, scale: "y", side: 1, grid: { show: false }, splits };
}

/** Of the splits of a logarithmic axis the powers of ten. */
const decades = (_, splits) =>
  splits.map((split) =>
    split !== null && Math.abs(Math.log10(split) - Math.round(Math.log10(split))) < 1e-6 ? split : null,
  );

/**
 * A chart in `host`. `spec` is
 *   x, y: { label, format, log, range? }; x.every: between which ticks may be; y.other: { every, format }: the right axis, whose ticks are multiples of `every` on y
 *   lines: [{ name, colour (a variable), values, low, high, dash, points, steps }] over `at`; points: whether each has a dot;
 *     steps: whether a value holds until the next
 *   dots: [{ x, y, radius, colour, square, name, text }], of which the largest get their names where there is room
 *   marks: [{ x, text, colour, low }] vertical lines, named above, or below on the line `low` from the axis
 *   whiskers: [{ x, low, high, middle, colour }] error bars
 *   pick(x): called when the user clicks at x; say(index | dot): the text under the picture
 */
export class Chart {
  constructor(host, sync) {
    this.host = host;
    this.sync = sync;
    this.plot = null;
    this.watch = new ResizeObserver(() => this.#resize());
    this.watch.observe(host);
    this.readout = h("p", { class: "readout soft", "aria-hidden": "true" });
  }

  show(spec) {
    const key = JSON.stringify([
      spec.lines.map((line) => [line.name, line.colour, Boolean(line.low), line.steps]),
      spec.x,
      spec.y,
      colour("ink"),
    ]);
    this.spec = spec;
    const data = [spec.at];
    for (const line of spec.lines) data.push(line.values, ...(line.low ? [line.low, line.high] : []));
    if (this.plot && key === this.key) {
      this.plot.setData(data);
    } else {
      this.key = key;
      this.plot?.destroy();
      this.plot = new uPlot(this.#options(spec), data, this.host);
      this.plot.root.setAttribute("aria-hidden", "true");
    }
    this.#tell(null);
  }

  #resize() {
    if (this.plot && this.host.clientWidth) this.plot.setSize({ width: this.host.clientWidth, height: HEIGHT });
  }

  #options(spec) {
    const series = [{}];
    const bands = [];
    for (const line of spec.lines) {
      const stroke = colour(line.colour);
      const paths = line.steps ? { paths: uPlot.paths.stepped({ align: 1 }) } : {};
      const points = { show: line.points ?? spec.at.length < 2 };
      series.push({ stroke, width: 2, dash: line.dash, spanGaps: true, points, ...paths });
      if (!line.low) continue;
      for (let edge = 0; edge < 2; edge++)
        series.push({ stroke: faded(stroke, 0.35), width: 1, spanGaps: true, points: { show: false } });
      bands.push({ series: [series.length - 1, series.length - 2], fill: faded(stroke, 0.13) });
    }
    const axis = (side, { label, format, few, every }) => ({
      label: side === "x" ? label : undefined,
      labelFont: font(12),
      labelSize: 20,
      font: font(12),
      stroke: colour("soft"),
      grid: { stroke: colour("grid"), width: 1, ...few },
      ticks: { stroke: colour("grid"), width: 1, size: 4, ...few },
      size: side === "x" ? 30 : (_, texts) => 14 + 7 * Math.max(4, ...(texts ?? []).map((text) => text.length)),
      space: side === "x" ? 58 : 36,
      ...(side === "x" && every ? { incrs: every } : {}),
      values: (_, splits) => splits.map((split) => (split === null ? "" : format(split))),
    });
    const scale = ({ log, range }) => ({ time: false, distr: log ? 3 : 1, ...(range ? { range: () => range() } : {}) });
    return {
      width: this.host.clientWidth || 300,
      height: HEIGHT,
      padding: [10, 22, 0, 0],
      legend: { show: false },
      scales: { x: scale(spec.x), y: scale({ ...spec.y, range: spec.y.range }) },
      axes: [
        axis("x", { ...spec.x, few: spec.x.log && { filter: decades } }),
        axis("y", { ...spec.y, few: spec.y.log && { filter: decades } }),
        ...(spec.y.other ? [rightAxis(axis("y", spec.y.other), spec.y.other.every)] : []),
      ],
      series,
      bands,
      cursor: {
        y: false,
        drag: { x: false, y: false },
        points: { show: spec.lines.length > 0 && !spec.dots },
        ...(this.sync ? { sync: { key: this.sync } } : {}),
        bind: { click: (plot) => () => this.#pick(plot), dblclick: () => () => null },
      },
      hooks: { draw: [(plot) => this.#over(plot)], setCursor: [(plot) => this.#tell(plot)] },
    };
  }

  #pick(plot) {
    if (this.spec.pick && plot.cursor.idx !== null) this.spec.pick(this.spec.at[plot.cursor.idx]);
  }

  /** Draws what uPlot has no series for: dots and vertical marks. */
  #over(plot) {
    const pen = plot.ctx;
    const scale = uPlot.pxRatio;
    pen.save();
    pen.beginPath();
    pen.rect(plot.bbox.left, plot.bbox.top - 10 * scale, plot.bbox.width + 22 * scale, plot.bbox.height + 10 * scale);
    pen.clip();
    for (const shape of this.#extra(plot)) {
      pen.fillStyle = shape.fill ?? "#000";
      pen.strokeStyle = shape.stroke ?? "#000";
      pen.globalAlpha = shape.alpha ?? 1;
      pen.setLineDash([]);
      pen.lineWidth = scale;
      if (shape.dot) dot(pen, { ...shape, dot: shape.dot.map((number) => number * scale) });
      if (shape.line) {
        pen.setLineDash((shape.dash ?? []).map((number) => number * scale));
        pen.lineWidth = (shape.width ?? 1) * scale;
        pen.beginPath();
        shape.line.forEach(([x, y], index) => pen[index ? "lineTo" : "moveTo"](x * scale, y * scale));
        pen.stroke();
      }
      if (shape.text !== undefined) {
        pen.font = font(12 * scale);
        pen.textAlign = { start: "left", end: "right" }[shape.anchor];
        pen.textBaseline = "alphabetic";
        pen.fillText(shape.text, shape.at[0] * scale, shape.at[1] * scale);
      }
    }
    pen.restore();
  }

  /** Dots, marks and names of dots in pixels of the page, for the canvas and for a file. */
  #extra(plot) {
    const scale = uPlot.pxRatio;
    const box = {
      left: plot.bbox.left / scale,
      top: plot.bbox.top / scale,
      width: plot.bbox.width / scale,
      height: plot.bbox.height / scale,
    };
    const at = (value, axis) => plot.valToPos(value, axis, true) / scale;
    const shapes = [];
    for (const mark of this.spec.marks ?? []) {
      const x = at(mark.x, "x");
      if (!(x >= box.left - 1 && x <= box.left + box.width + 1)) continue;
      const stroke = colour(mark.colour ?? "soft");
      shapes.push({
        line: [
          [x, box.top],
          [x, box.top + box.height],
        ],
        stroke,
        dash: [4, 4],
      });
      const right = x > box.left + box.width * 0.6;
      const height = mark.low ? box.height + 8 - 16 * mark.low : 10;
      shapes.push({
        text: mark.text,
        at: [x + (right ? -5 : 5), box.top + height],
        anchor: right ? "end" : "start",
        fill: stroke,
      });
    }
    for (const { x, low, high, middle, colour: name } of this.spec.whiskers ?? []) {
      const stroke = colour(name);
      const [across, bottom, top] = [at(x, "x"), at(low, "y"), at(high, "y")];
      for (const line of [
        [
          [across, bottom],
          [across, top],
        ],
        ...[bottom, top].map((y) => [
          [across - 5, y],
          [across + 5, y],
        ]),
      ])
        shapes.push({ line, stroke, width: 1.5 });
      shapes.push({ dot: [across, at(middle, "y"), 4], fill: stroke });
    }
    const dots = (this.spec.dots ?? []).map((point) => ({ ...point, x: at(point.x, "x"), y: at(point.y, "y") }));
    for (const { x, y, radius, square, colour: name } of dots) {
      const fill = colour(name);
      shapes.push({ dot: [x, y, radius], fill, alpha: 0.55, stroke: fill, square });
    }
    const texts = labels(dots, box, shapes.filter((shape) => shape.text !== undefined));
    return [...shapes, ...texts.map((text) => ({ ...text, fill: colour("ink") }))];
  }

  #tell(plot) {
    const { dots, say, rest } = this.spec;
    let text = rest ?? "";
    if (plot?.cursor.left >= 0 && say) {
      if (dots) {
        const near = this.#nearest(plot, dots);
        if (near) text = say(near);
      } else if (plot.cursor.idx !== null && plot.cursor.idx !== undefined) text = say(plot.cursor.idx);
    }
    this.readout.textContent = text;
  }

  #nearest(plot, dots) {
    const far = (point) =>
      Math.hypot(plot.valToPos(point.x, "x") - plot.cursor.left, plot.valToPos(point.y, "y") - plot.cursor.top) -
      point.radius;
    const near = dots.map((point) => [far(point), point]).sort((left, right) => left[0] - right[0])[0];
    return near && near[0] < 24 ? near[1] : null;
  }

  /** The picture as shapes, with `heading` over it. */
  scene(heading) {
    const { plot, spec } = this;
    const scale = uPlot.pxRatio;
    const top = 26;
    const box = {
      left: plot.bbox.left / scale,
      top: plot.bbox.top / scale + top,
      width: plot.bbox.width / scale,
      height: plot.bbox.height / scale,
    };
    const at = (value, axis) => plot.valToPos(value, axis, true) / scale + (axis === "y" ? top : 0);
    const [width, height] = [plot.width, plot.height + top];
    const shapes = [
      { rect: [0, 0, width, height], fill: colour("card") },
      { text: heading, at: [8, 17], size: 13, bold: true, fill: colour("ink") },
    ];
    shapes.push(...axesOf(plot, box, at), {
      text: spec.x.label,
      at: [box.left + box.width / 2, height - 6],
      anchor: "middle",
      fill: colour("soft"),
    });
    const inside = ([x, y]) => x >= box.left - 1 && x <= box.left + box.width + 1 && Number.isFinite(y);
    const path = (values) =>
      spec.at.map((x, i) => (values[i] == null ? [NaN, NaN] : [at(x, "x"), at(values[i], "y")])).filter(inside);
    for (const line of spec.lines) {
      const stroke = colour(line.colour);
      if (line.low) shapes.push({ area: [...path(line.low), ...path(line.high).reverse()], fill: stroke, alpha: 0.13 });
      const way = path(line.values);
      shapes.push({ line: line.steps ? stairs(way) : way, stroke, width: 2, dash: line.dash });
      if (line.points) shapes.push(...path(line.values).map(([x, y]) => ({ dot: [x, y, 3], fill: stroke })));
    }
    const lower = (shape) => ({
      ...shape,
      ...(shape.dot ? { dot: [shape.dot[0], shape.dot[1] + top, shape.dot[2]] } : {}),
      ...(shape.line ? { line: shape.line.map(([x, y]) => [x, y + top]) } : {}),
      ...(shape.at ? { at: [shape.at[0], shape.at[1] + top] } : {}),
    });
    return { width, height, shapes: [...shapes, ...this.#extra(plot).map(lower)], title: heading };
  }

  destroy() {
    this.watch.disconnect();
    this.plot?.destroy();
  }
}

/** Each height holds until the next place. */
const stairs = (way) => way.flatMap(([x, y], index) => (index ? [[x, way[index - 1][1]], [x, y]] : [[x, y]]));

/** Grid and numbers of the axes as uPlot placed them. */
function axesOf(plot, box, at) {
  const shapes = [];
  plot.axes.forEach((axis, index) => {
    const key = index === 0 ? "x" : "y";
    (axis._splits ?? []).forEach((split, i) => {
      const where = at(split, key);
      const line =
        key === "x"
          ? [
              [where, box.top],
              [where, box.top + box.height],
            ]
          : [
              [box.left, where],
              [box.left + box.width, where],
            ];
      const text = String(axis._values?.[i] ?? "");
      if (text && index < 2) shapes.push({ line, stroke: colour("grid") });
      const [place, anchor] = [
        [[where, box.top + box.height + 18], "middle"],
        [[box.left - 8, where + 4], "end"],
        [[box.left + box.width + 8, where + 4], "start"],
      ][index];
      if (text) shapes.push({ text, at: place, anchor, fill: colour("soft") });
    });
  });
  return shapes;
}
