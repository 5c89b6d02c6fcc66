// Small line charts of the last minutes, drawn as SVG. Pointing at one shows the values of that moment.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 320;
const HEIGHT = 64;
const SPANS_S = [60, 120, 300]; // the time axis grows with what is known

const whole = (value) => Math.round(value).toLocaleString("en");
const percent = (value) => `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;
const perSecond = (value) => (value >= 10 || value === 0 ? whole(value) : value.toFixed(1));

export function seconds(value) {
  if (value < 1) return `${Math.round(1000 * value)} ms`;
  return `${value.toFixed(value < 10 ? 2 : 1)} s`;
}

export const CHARTS = [
  { title: "Requests", format: whole, least: 4,
    series: [{ key: "running", label: "running" }, { key: "waiting", label: "waiting" }] },
  { title: "Tokens per second", format: perSecond, least: 10,
    series: [{ key: "tokensPerS", label: "written" }, { key: "promptTokensPerS", label: "read" }] },
  { title: "KV cache in use", format: percent, least: 0.01, most: 1, series: [{ key: "kvUsage", label: "of all blocks" }] },
  { title: "Time to first token", format: seconds, least: 0.1,
    series: [{ key: "ttft50", label: "median" }, { key: "ttft95", label: "95 %" }] },
];

// Seconds that the time axis has for these points.
export function findSpan(points, now) {
  const age = points.length ? now - points[0].time : 0;
  return SPANS_S.find((span) => age <= span) ?? SPANS_S.at(-1);
}

export class Chart {
  constructor(parent, spec) {
    this._spec = spec;
    this._points = [];
    this._chosen = null;
    this._pointedAt = null; // a share of the width
    this._build(parent);
    this._showValues();
  }

  show(points, now) {
    this._points = points;
    this._now = now;
    this._span = findSpan(points, now);
    this._scale = this._findScale();
    this._lines.forEach((line, i) => line.setAttribute("d", this._path(this._spec.series[i].key)));
    this._area.setAttribute("d", this._areaPath(this._spec.series[0].key));
    this._top.textContent = this._spec.format(this._scale);
    if (!this._chosen) this._findChosen(); // the pointer may have been there before the points
    this._showValues();
  }

  _build(parent) {
    const figure = add(parent, "figure", "chart");
    const head = add(figure, "figcaption");
    add(head, "span", "chart-title").textContent = this._spec.title;
    this._ago = add(head, "span", "chart-ago");
    const values = add(figure, "div", "chart-values");
    this._values = this._spec.series.map(({ label }, i) => {
      const value = add(values, "span", `chart-value series-${i}`);
      const number = add(value, "b");
      value.append(" ");
      add(value, "span").textContent = label;
      return number;
    });
    const plot = add(figure, "div", "plot");
    this._top = add(plot, "span", "chart-top");
    this._svg = this._draw(plot);
  }

  _draw(plot) {
    const svg = addSvg(plot, "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    for (const y of [0.5, HEIGHT / 2, HEIGHT - 0.5]) addSvg(svg, "line", { class: "grid", x1: 0, x2: WIDTH, y1: y, y2: y });
    this._area = addSvg(svg, "path", { class: "area" });
    this._lines = this._spec.series.map((_, i) => addSvg(svg, "path", { class: `line series-${i}` }));
    this._lines.reverse().forEach((line) => svg.append(line));
    this._lines.reverse();
    this._cursor = addSvg(svg, "line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" });
    svg.addEventListener("pointerdown", (event) => this._choose(event));
    svg.addEventListener("pointermove", (event) => this._choose(event));
    svg.addEventListener("pointerleave", () => this._choose(null));
    return svg;
  }

  _findScale() {
    const all = this._points.flatMap((point) => this._spec.series.map(({ key }) => point[key] ?? 0));
    const highest = niceAbove(Math.max(this._spec.least, ...all));
    return this._spec.most ? Math.min(this._spec.most, highest) : highest;
  }

  _x(point) {
    return WIDTH * (1 - (this._now - point.time) / this._span);
  }

  _xy(point, key) {
    return [this._x(point), HEIGHT - 1 - (HEIGHT - 3) * Math.min(1, point[key] / this._scale)];
  }

  // A run of points for each stretch without a gap.
  _runs(key) {
    const runs = [[]];
    for (const point of this._points) {
      if (point[key] === null || point[key] === undefined) runs.push([]);
      else runs.at(-1).push(this._xy(point, key));
    }
    return runs.filter((run) => run.length > 0);
  }

  _path(key) {
    return this._runs(key).map((run) => "M" + run.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L") + (run.length === 1 ? "h0.5" : "")).join("");
  }

  _areaPath(key) {
    const closed = (run) => [[run[0][0], HEIGHT], ...run, [run.at(-1)[0], HEIGHT]];
    return this._runs(key).map((run) => "M" + closed(run).map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L") + "Z").join("");
  }

  _choose(event) {
    const box = this._svg.getBoundingClientRect();
    this._pointedAt = event && (event.clientX - box.left) / box.width;
    this._findChosen();
    this._showValues();
  }

  _findChosen() {
    const isPointed = this._pointedAt !== null;
    this._chosen = isPointed ? nearest(this._points, this._now - this._span * (1 - this._pointedAt)) : null;
  }

  _showValues() {
    const point = this._chosen ?? this._points.at(-1) ?? {};
    this._spec.series.forEach(({ key }, i) => (this._values[i].textContent = this._shown(point[key])));
    this._ago.textContent = this._chosen ? `${Math.max(0, Math.round(this._now - point.time))} s ago` : "";
    this._cursor.setAttribute("visibility", this._chosen ? "visible" : "hidden");
    if (this._chosen) {
      this._cursor.setAttribute("x1", this._x(point));
      this._cursor.setAttribute("x2", this._x(point));
    }
    const words = this._spec.series.map(({ key, label }) => `${label} ${this._shown(point[key])}`);
    this._svg.setAttribute("aria-label", `${this._spec.title}: ${words.join(", ")}; top of the chart ${this._spec.format(this._scale ?? this._spec.least)}`);
  }

  _shown(value) {
    return value === null || value === undefined ? "–" : this._spec.format(value);
  }
}

function nearest(points, time) {
  return points.reduce((best, point) => (!best || Math.abs(point.time - time) < Math.abs(best.time - time) ? point : best), null);
}

// The next of 1, 2, 4, 5, 8 times a power of ten, so that the scale does not change with every scrape.
function niceAbove(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 4, 5, 8, 10].find((step) => step * power >= value * 0.9999);
}

function add(parent, name, className = "") {
  const element = document.createElement(name);
  if (className) element.className = className;
  parent.append(element);
  return element;
}

function addSvg(parent, name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent.append(element);
  return element;
}
