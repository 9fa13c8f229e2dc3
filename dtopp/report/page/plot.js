// A figure with axes, a cursor and zoom. LineChart and HeatMap implement its content: extent(), yScale(), paint(), rows().
const MARGIN = { left: 54, right: 30, top: 8, bottom: 34 };

const visibility = new IntersectionObserver(entries => {
  for (const { target, isIntersecting } of entries) {
    target.plot.isVisible = isIntersecting;
  }
  schedule();
}, { rootMargin: "300px" });

const resizing = new ResizeObserver(entries => {
  for (const { target } of entries) {
    const plot = target.closest("figure").plot;
    plot.isDirty = true;
    if (isForPrint()) plot.refresh();
  }
  schedule();
});

class Plot {
  constructor(block, document_) {
    this.block = block;
    this.document = document_;
    this.isDirty = true;
    this.isVisible = false;
    this.canvas = element("canvas", { "aria-hidden": true });
    this.labels = element("div", { class: "labels", "aria-hidden": true });
    this.line = element("div", { class: "cursor", hidden: true });
    this.selection = element("div", { class: "selection", hidden: true });
    this.tip = element("output", { class: "tip", hidden: true });
    this.area = element("div", { class: "area", tabindex: 0, role: "group", "aria-label": this.summary() },
      this.canvas, this.labels, this.line, this.selection, this.tip);
    this.buttons = element("span", { class: "buttons" });
    this.element = element("figure", { class: "plot" }, element("figcaption", null,
      element("h3", null, block.title), element("span", { class: "unit" }, block.y_label), this.buttons), this.area);
    if (block.note) this.element.append(element("p", { class: "note" }, block.note));
    this.element.plot = this;
    this.listen();
    visibility.observe(this.element);
    resizing.observe(this.area);
    view.plots.push(this);
  }

  summary() { return `${this.block.title}; arrow keys read values, + and − zoom, 0 shows all`; }
  close() {
    visibility.unobserve(this.element);
    resizing.unobserve(this.area);
  }
  xLabel() { return this.block.own_x ?? AXES[view.axis]; }
  isLogX() { return view.logX && !this.block.own_x; }

  xRange() {
    if (view.range !== null && !this.block.own_x) return view.range;
    let [low, high] = this.block.own_x ? this.extent() : pageExtent(this.document);
    if (!(high > low)) [low, high] = [low - 0.5, low + 0.5];
    return [low, high];
  }

  // Returns the columns that drawing reads: those of the block and the clocks of all runs, which give the axis its range.
  columns() {
    const own = (this.block.lines ?? [this.block]).flatMap(line => [line.x, line.y, line.band, ...(line.cells ?? [])]);
    return [...own, ...this.document.clocks.flatMap(clock => Object.values(clock ?? {}))].filter(id => id !== undefined);
  }

  refresh() {
    if (!this.isDirty || this.area.clientWidth === 0 || !this.columns().every(isLoaded)) return;
    this.isDirty = false;
    const ratio = this.pixelRatio ?? window.devicePixelRatio;
    const width = this.area.clientWidth, height = this.area.clientHeight;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const inside = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
    const range = this.xRange();
    this.inside = inside;
    this.x = makeScale(range[0], range[1], this.isLogX(), inside.left, inside.right);
    this.y = this.yScale(range, inside);
    const context = this.canvas.getContext("2d");
    this.labels.replaceChildren();
    this.paintAxes(context, ratio);
    context.save();
    context.beginPath();
    context.rect(inside.left * ratio, (inside.top - 3) * ratio, (inside.right - inside.left + 3) * ratio,
      (inside.bottom - inside.top + 6) * ratio);
    context.clip();
    this.paint(context, ratio, range, inside);
    context.restore();
    this.placeCursor(false);
  }

  paintAxes(context, ratio) {
    const { left, right, top, bottom } = this.inside;
    context.strokeStyle = colorOf("--grid");
    context.lineWidth = Math.max(1, Math.round(ratio * 0.75));
    const rule = (x1, y1, x2, y2) => {
      const at = v => Math.round(v * ratio) + (context.lineWidth % 2) / 2;
      context.beginPath();
      context.moveTo(at(x1), at(y1));
      context.lineTo(at(x2), at(y2));
      context.stroke();
    };
    for (const v of this.yTicks()) {
      const y = this.y.at(v);
      if (this.hasGrid()) rule(left, y, right, y);
      this.label("y", formatNumber(v), { top: y, right: left - 6 });
    }
    const ticks = ticksOf(this.x, Math.max(2, Math.floor((right - left) / 90)));
    for (const v of ticks) {
      rule(this.x.at(v), bottom, this.x.at(v), bottom + 4);
      this.label("x", formatNumber(v), { left: this.x.at(v), top: bottom + 6 });
    }
    this.label("x-name", this.xLabel(), { right, top: bottom + 20 });
    rule(left, bottom, right, bottom);
  }

  // Places a label at a relative position in the area, so that labels move with the canvas if it is printed at another size.
  // `right` is the position of the end of the text.
  label(kind, text, { left, right, top, color }) {
    const { clientWidth: width, clientHeight: height } = this.area;
    const x = left === undefined ? `right:${100 - 100 * right / width}%` : `left:${100 * left / width}%`;
    const style = `${x};top:${100 * top / height}%;${color ? "color:" + color : ""}`;
    this.labels.append(element("span", { class: "label " + kind, style }, text));
  }

  placeCursor(withTip) {
    const isShown = view.cursor !== null && this.x !== undefined && view.cursor >= this.x.low && view.cursor <= this.x.high;
    this.line.hidden = !isShown;
    this.tip.hidden = !(isShown && withTip);
    if (!isShown) return;
    const at = this.x.at(view.cursor);
    this.line.style.left = at + "px";
    if (!withTip) return;
    const { position, rows } = this.rows(view.cursor);
    this.tip.replaceChildren(element("b", null, `${this.xLabel()} ${formatNumber(position, 6)}`), ...rows);
    const isRight = at > (this.inside.left + this.inside.right) / 2;
    this.tip.style.left = isRight ? "" : at + 12 + "px";
    this.tip.style.right = isRight ? this.area.clientWidth - at + 12 + "px" : "";
  }

  listen() {
    const valueAt = event => {
      const at = event.clientX - this.area.getBoundingClientRect().left;
      return this.x.value(Math.min(Math.max(at, this.inside.left), this.inside.right));
    };
    let start = null;
    this.area.addEventListener("pointerdown", event => {
      if (event.button === 0) start = event.clientX;
      showCursor(valueAt(event), this);
    });
    this.area.addEventListener("pointermove", event => {
      showCursor(valueAt(event), this);
      if (start === null || this.block.own_x || Math.abs(event.clientX - start) < 5) return;
      this.area.setPointerCapture(event.pointerId);
      const left = this.area.getBoundingClientRect().left;
      const ends = [start - left, event.clientX - left].map(v => Math.min(Math.max(v, this.inside.left), this.inside.right));
      this.selection.hidden = false;
      this.selection.style.left = Math.min(...ends) + "px";
      this.selection.style.width = Math.abs(ends[1] - ends[0]) + "px";
    });
    const finish = event => {
      if (start !== null && !this.selection.hidden && event.type === "pointerup") {
        const left = this.selection.offsetLeft;
        zoom([this.x.value(left), this.x.value(left + this.selection.offsetWidth)]);
      }
      start = null;
      this.selection.hidden = true;
    };
    this.area.addEventListener("pointerup", finish);
    this.area.addEventListener("pointercancel", finish);
    this.area.addEventListener("pointerleave", () => showCursor(null, this));
    this.area.addEventListener("blur", () => showCursor(null, this));
    this.area.addEventListener("dblclick", () => zoom(null));
    this.area.addEventListener("keydown", event => this.key(event));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.x === undefined) return;
    const { left, right } = this.inside;
    const at = view.cursor === null ? (left + right) / 2 : this.x.at(view.cursor);
    const move = pixels => showCursor(this.x.value(Math.min(Math.max(at + pixels, left), right)), this);
    const step = event.shiftKey ? 50 : 5;
    const scaled = factor => [this.x.value(at + (left - at) * factor), this.x.value(at + (right - at) * factor)];
    const actions = {
      ArrowLeft: () => move(-step), ArrowRight: () => move(step), Home: () => move(left - right), End: () => move(right - left),
      "+": () => zoom(scaled(0.5)), "=": () => zoom(scaled(0.5)), "-": () => zoom(clampedRange(scaled(2), this.document)),
      "0": () => zoom(null), Escape: () => { zoom(null); showCursor(null, this); }, l: () => this.toggleLog?.(),
    };
    if (actions[event.key] === undefined) return;
    event.preventDefault();
    actions[event.key]();
  }
}

// Returns the range from the first to the last point of all visible runs.
function pageExtent(document_) {
  let low = Infinity, high = -Infinity;
  for (const [run, clock] of document_.clocks.entries()) {
    if (clock === null || view.hidden.has(run) || clock[view.axis === "step" ? "steps" : view.axis] === undefined) continue;
    const values = valuesOf(clock[view.axis === "step" ? "steps" : view.axis]);
    const first = view.logX ? values.find(v => v > 0) ?? 1 : 0;
    low = Math.min(low, first);
    high = Math.max(high, values[values.length - 1]);
  }
  return high >= low ? [low, high] : [0, 1];
}

function clampedRange([low, high], document_) {
  const [first, last] = pageExtent(document_);
  return low <= first && high >= last ? null : [Math.max(low, first), Math.min(high, last)];
}
