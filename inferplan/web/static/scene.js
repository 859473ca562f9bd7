// A picture as a list of shapes, drawn as SVG on the page and in a file, or on a canvas for a PNG.
//
// Shapes: { rect: [x, y, width, height], fill }, { line: [[x, y], ...], stroke, width, dash }, { area: [[x, y], ...],
// fill, alpha }, { dot: [x, y, radius], fill, stroke, square }, { text, at: [x, y], fill, size, anchor, bold }.

import { save } from "./dom.js";

const FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', sans-serif";
const points = (line) => line.map(([x, y]) => `${round(x)},${round(y)}`).join(" ");
const round = (number) => Math.round(number * 100) / 100;

/** Tag and attributes of a shape in SVG. */
function element(shape) {
  if (shape.rect) {
    const [x, y, width, height] = shape.rect.map(round);
    return ["rect", { x, y, width, height, fill: shape.fill }];
  }
  if (shape.line) {
    return [
      "polyline",
      {
        points: points(shape.line),
        fill: "none",
        stroke: shape.stroke,
        "stroke-width": shape.width ?? 1,
        "stroke-dasharray": shape.dash?.join(" "),
        "stroke-linejoin": "round",
      },
    ];
  }
  if (shape.area)
    return ["polygon", { points: points(shape.area), fill: shape.fill, "fill-opacity": shape.alpha ?? 1 }];
  if (shape.dot) {
    const [x, y, r] = shape.dot.map(round);
    const paint = { fill: shape.fill, "fill-opacity": shape.alpha ?? 1, stroke: shape.stroke };
    return shape.square
      ? ["rect", { x: x - r, y: y - r, width: 2 * r, height: 2 * r, ...paint }]
      : ["circle", { cx: x, cy: y, r, ...paint }];
  }
  const [x, y] = shape.at.map(round);
  return [
    "text",
    {
      x,
      y,
      fill: shape.fill,
      "font-size": shape.size ?? 12,
      "text-anchor": shape.anchor ?? "start",
      "font-weight": shape.bold ? 600 : null,
    },
  ];
}

/** The scene as an element of the page; `name` is what a screen reader says of it. */
export function svgNode(scene, name) {
  const make = (tag, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes))
      if (value !== null && value !== undefined) node.setAttribute(key, value);
    return node;
  };
  const root = make("svg", {
    viewBox: `0 0 ${scene.width} ${scene.height}`,
    role: "img",
    "aria-label": name,
    class: "picture",
    "font-family": FONT,
  });
  for (const shape of scene.shapes) {
    const node = make(...element(shape));
    if (shape.text !== undefined) node.textContent = shape.text;
    root.append(node);
  }
  return root;
}

function svgText(scene) {
  const node = svgNode(scene, scene.title);
  node.setAttribute("width", scene.width);
  node.setAttribute("height", scene.height);
  return new XMLSerializer().serializeToString(node);
}

function draw(pen, shape) {
  const trace = (line) => {
    pen.beginPath();
    line.forEach(([x, y], index) => (index ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  };
  pen.setLineDash(shape.dash ?? []);
  pen.globalAlpha = shape.alpha ?? 1;
  pen.fillStyle = shape.fill ?? "#000";
  pen.strokeStyle = shape.stroke ?? "#000";
  pen.lineWidth = shape.width ?? 1;
  if (shape.rect) pen.fillRect(...shape.rect);
  else if (shape.line) {
    trace(shape.line);
    pen.stroke();
  } else if (shape.area) {
    trace(shape.area);
    pen.fill();
  } else if (shape.dot) dot(pen, shape);
  else {
    pen.font = `${shape.bold ? 600 : 400} ${shape.size ?? 12}px ${FONT}`;
    pen.textAlign = { start: "left", middle: "center", end: "right" }[shape.anchor ?? "start"];
    pen.fillText(shape.text, ...shape.at);
  }
}

/** A round or square mark. */
export function dot(pen, { dot: [x, y, r], square, stroke }) {
  pen.beginPath();
  if (square) pen.rect(x - r, y - r, 2 * r, 2 * r);
  else pen.arc(x, y, r, 0, 2 * Math.PI);
  pen.fill();
  if (stroke) pen.stroke();
}

function canvasOf(scene, scale = 2) {
  const canvas = document.createElement("canvas");
  canvas.width = scene.width * scale;
  canvas.height = scene.height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  for (const shape of scene.shapes) draw(pen, shape);
  return canvas;
}

const COLOURS = { "of-0": "a", "of-1": "b", "of-2": "c", "of-3": "d", "wrong-line": "bad" };

/** The scene with its legend and a line about it below, as it is saved. */
export function captioned(scene, legend, about) {
  const lines = [[]];
  let x = 8;
  for (const { name, of, round } of legend) {
    const wide = 30 + 6.8 * name.length;
    if (x > 8 && x + wide > scene.width) {
      lines.push([]);
      x = 8;
    }
    lines.at(-1).push({ name, x, colour: colour(COLOURS[of] ?? "soft"), round });
    x += wide;
  }
  const rows = lines.filter((line) => line.length);
  const words = 16 + 6.8 * about.length > scene.width ? about.split(": ") : [about].filter(Boolean);
  const width = Math.max(scene.width, ...words.map((line) => 16 + 6.8 * line.length));
  const height = scene.height + 20 * (rows.length + words.length) + 6;
  const shapes = [];
  rows.forEach((line, index) => {
    const y = scene.height + 14 + 20 * index;
    for (const entry of line) {
      shapes.push({ dot: [entry.x + 5, y - 4, 5], fill: entry.colour, square: !entry.round });
      shapes.push({ text: entry.name, at: [entry.x + 15, y], fill: colour("ink") });
    }
  });
  words.forEach((text, index) => {
    shapes.push({ text, at: [8, height - 10 - 20 * (words.length - 1 - index)], fill: colour("soft") });
  });
  const ground = { rect: [0, 0, width, height], fill: colour("card") };
  return { ...scene, width, height, shapes: [ground, ...scene.shapes, ...shapes] };
}

/** Saves the scene as `name`.svg or `name`.png. */
export function savePicture(scene, name, kind) {
  if (kind === "svg") save(`${name}.svg`, svgText(scene), "image/svg+xml");
  else canvasOf(scene).toBlob((blob) => save(`${name}.png`, blob));
}

const seen = new Map();

/** The colour that a variable of the style sheet stands for now, light or dark. */
export function colour(name) {
  if (!seen.has(name)) {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = `var(--${name})`;
    seen.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return seen.get(name);
}

/** After a change between light and dark. */
export const forgetColours = () => seen.clear();
