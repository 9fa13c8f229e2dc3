// Holds the state that all charts share: axis, zoom, visible runs and smoothing. Elements are created from text, never from
// markup, because run names are untrusted input.
const AXES = { step: "step", tokens: "tokens", flops: "active FLOPs", hours: "hours in steps" };

const view = { axis: "step", range: null, logX: false, smoothing: 0.01, hidden: new Set(), plots: [], cursor: null };

// element("p", {class: "note"}, "text", child…)
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter(child => child !== null));
  return made;
}

const DASHES = [[], [7, 3], [2, 2.5], [9, 3, 2, 3], [14, 4], [5, 2, 1.5, 2, 1.5, 2], [1, 4], [18, 3, 4, 3]];
const COLORS = 8;

function styleOf(run) {
  return { color: `--run-${run.style % COLORS}`, dash: DASHES[run.style % DASHES.length], marker: run.style };
}

function colorOf(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Returns a short sample of a run's line.
function swatch(run) {
  const namespace = "http://www.w3.org/2000/svg";
  const { color, dash } = styleOf(run);
  const svg = document.createElementNS(namespace, "svg");
  const line = document.createElementNS(namespace, "line");
  for (const [key, value] of Object.entries({ width: 26, height: 8, "aria-hidden": true })) svg.setAttribute(key, value);
  for (const [key, value] of Object.entries({ x1: 1, y1: 4, x2: 25, y2: 4, "stroke-width": 2.5, stroke: `var(${color})` }))
    line.setAttribute(key, value);
  if (dash.length > 0) line.setAttribute("stroke-dasharray", dash.map(length => length * 0.8).join(" "));
  svg.append(line);
  return svg;
}

function isForPrint() { return document.documentElement.classList.contains("print"); }

// Redraws visible plots that are out of date, for at most 12 ms per frame so that scrolling stays smooth. While the page
// loads, it continues to draw the parts that have arrived.
let isScheduled = false;
function schedule() {
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    const end = performance.now() + 12;
    if (document.readyState === "loading") schedule();
    for (const plot of view.plots) {
      if (!plot.isVisible || !plot.isDirty) continue;
      plot.refresh();
      if (performance.now() < end) continue;
      schedule();
      break;
    }
  });
}

function redraw() {
  for (const plot of view.plots) plot.isDirty = true;
  schedule();
}

function zoom(range) {
  view.range = range;
  document.body.classList.toggle("zoomed", range !== null);
  redraw();
}

function showCursor(value, source) {
  view.cursor = value;
  for (const plot of view.plots) if (plot.isVisible && !plot.block.own_x === !source.block.own_x) plot.placeCursor(plot === source);
}
