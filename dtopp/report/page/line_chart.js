// Draws lines of runs over steps, tokens, FLOPs or time, with bands and levels.
const logChosen = new Map();  // title → whether the user chose a logarithmic y axis

// Returns the label of a line: "run", "run · part", or the line's own name if it combines several runs.
function nameOf(line, run) {
  return line.of_many ? line.name : [run.name, line.name].filter(name => name).join(" · ");
}

class LineChart extends Plot {
  constructor(block, document_) {
    super(block, document_);
    this.isLog = logChosen.get(block.title) ?? block.log ?? false;
    this.cache = new Map();
    this.logButton = element("button", { type: "button", "aria-pressed": String(this.isLog), title: "logarithmic y axis (key l)",
      onclick: () => this.toggleLog() }, "log");
    this.buttons.append(this.logButton);
  }

  toggleLog() {
    this.isLog = !this.isLog;
    logChosen.set(this.block.title, this.isLog);
    this.logButton.setAttribute("aria-pressed", String(this.isLog));
    this.isDirty = true;
    this.refresh();
  }

  // Returns the lines to draw: {line, run, xs, ys, widths}.
  lines() {
    return this.block.lines.filter(line => !view.hidden.has(line.run)).map(line => ({
      line, run: this.document.runs[line.run], ys: valuesOf(line.y), widths: line.band === undefined ? null : valuesOf(line.band),
      xs: this.block.own_x ? valuesOf(line.x) : positionsOf(this.document.clocks, line, view.axis),
    })).filter(({ xs }) => xs !== null && xs.length > 0);
  }

  extent() {
    const lines = this.lines();
    return [Math.min(...lines.map(({ xs }) => xs[0])), Math.max(...lines.map(({ xs }) => xs[xs.length - 1]))];
  }

  // Returns the indices of the points in a range, plus one on either side so that lines reach the border.
  window({ xs }, [low, high]) {
    const from = Math.max(0, lowerBound(xs, low) - 1);
    let to = lowerBound(xs, high);
    while (to < xs.length && xs[to] <= high) ++to;
    return [from, Math.min(xs.length, to + 1)];
  }

  yScale(range, inside) {
    let low = Infinity, high = -Infinity;
    const include = v => {
      if (this.isLog && !(v > 0)) return;
      if (v < low) low = v;
      if (v > high) high = v;
    };
    for (const drawn of this.lines()) {
      const [from, to] = this.window(drawn, range);
      for (let i = from; i < to; ++i) {
        include(drawn.ys[i]);
        if (drawn.widths === null || !(drawn.widths[i] >= 0)) continue;
        include(drawn.ys[i] + drawn.widths[i]);
        include(Math.max(drawn.ys[i] - drawn.widths[i], this.block.from_zero ? 0 : -Infinity));
      }
    }
    for (const level of this.block.levels ?? []) if (level.run === undefined || !view.hidden.has(level.run)) include(level.value);
    if (this.block.from_zero && !this.isLog) include(0);
    if (!(high >= low)) [low, high] = [this.isLog ? 0.1 : 0, 1];
    if (high === low) {
      const room = Math.abs(low) * 0.1 || 0.5;
      [low, high] = this.isLog ? [low / 2, high * 2] : [low - room, high + room];
    }
    const pad = this.isLog ? (high / low) ** 0.04 : (high - low) * 0.05;
    const bottom = this.block.from_zero && !this.isLog && low === 0 ? 0 : this.isLog ? low / pad : low - pad;
    return makeScale(bottom, this.isLog ? high * pad : high + pad, this.isLog, inside.bottom, inside.top);
  }

  yTicks() { return ticksOf(this.y, Math.max(2, Math.floor((this.inside.bottom - this.inside.top) / 36))); }
  hasGrid() { return true; }

  smoothedOf(drawn) {
    if (drawn.line.marks || this.block.exact) return null;
    const key = `${drawn.line.y} ${view.smoothing}`;
    if (this.cache.get(drawn.line)?.key !== key || this.cache.get(drawn.line).source !== drawn.ys)
      this.cache.set(drawn.line, { key, source: drawn.ys, values: smoothed(drawn.ys, view.smoothing) });
    return this.cache.get(drawn.line).values;
  }

  paint(context, ratio, range, inside) {
    const x = makeScale(range[0], range[1], this.isLogX(), inside.left * ratio, inside.right * ratio);
    const y = makeScale(this.y.low, this.y.high, this.isLog, inside.bottom * ratio, inside.top * ratio);
    const lines = this.lines();
    context.lineJoin = context.lineCap = "round";
    for (const drawn of lines) {
      if (drawn.widths === null) continue;
      context.fillStyle = colorOf(styleOf(drawn.run).color);
      context.globalAlpha = 0.16;
      fillBand(context, drawn.xs, drawn.ys, drawn.widths, ...this.window(drawn, range), x, y);
    }
    this.paintLevels(context, ratio, y, inside);
    // With many runs, single points would hide the means.
    const faint = 0.3 / Math.max(1, Math.sqrt(lines.length));
    for (const drawn of lines) this.paintPoints(context, ratio, drawn, range, x, y, faint);
    for (const drawn of lines) this.paintLine(context, ratio, drawn, range, x, y);
    context.globalAlpha = 1;
    this.tagEnds(lines, range);
  }

  // Draws the unsmoothed line faintly behind its mean.
  paintPoints(context, ratio, drawn, range, x, y, alpha) {
    if (this.smoothedOf(drawn) === null) return;
    context.strokeStyle = colorOf(styleOf(drawn.run).color);
    context.globalAlpha = alpha;
    context.lineWidth = ratio;
    tracePath(context, drawn.xs, drawn.ys, ...this.window(drawn, range), x, y);
  }

  paintLine(context, ratio, drawn, range, x, y) {
    const { color, dash, marker } = styleOf(drawn.run);
    const [from, to] = this.window(drawn, range);
    const means = this.smoothedOf(drawn);
    const { line, xs, ys } = drawn;
    context.strokeStyle = context.fillStyle = colorOf(color);
    if (means !== null) {  // outline to separate it from the points behind
      context.strokeStyle = colorOf("--paper");
      context.lineWidth = 3.4 * ratio;
      context.globalAlpha = 0.8;
      tracePath(context, xs, means, from, to, x, y);
      context.strokeStyle = colorOf(color);
    }
    context.globalAlpha = line.minor ? 0.75 : 1;
    context.lineWidth = (line.minor ? 1.1 : 1.7) * ratio;
    context.setLineDash((line.minor ? [2, 3] : dash).map(length => length * ratio));
    tracePath(context, xs, means ?? ys, from, to, x, y);
    context.setLineDash([]);
    if (to - from <= (line.marks ? 200 : 30)) drawMarkers(context, xs, ys, from, to, x, y, marker, 3 * ratio);
  }

  paintLevels(context, ratio, y, inside) {
    context.globalAlpha = 1;
    context.strokeStyle = colorOf("--muted");
    context.lineWidth = ratio;
    context.setLineDash([4 * ratio, 4 * ratio]);
    const drawn = new Set();
    for (const level of this.block.levels ?? []) {
      if (drawn.has(level.value) || (level.run !== undefined && view.hidden.has(level.run))) continue;
      drawn.add(level.value);
      context.beginPath();
      context.moveTo(inside.left * ratio, y.at(level.value));
      context.lineTo(inside.right * ratio, y.at(level.value));
      context.stroke();
      this.label("level", level.label, { top: y.at(level.value) / ratio, right: inside.right - 2 });
    }
    context.setLineDash([]);
  }

  // Draws each run's number at the end of its line, if the numbers do not overlap.
  tagEnds(lines, range) {
    if (this.document.runs.length < 2) return;
    const tags = [];
    for (const drawn of lines.filter(({ line }) => !line.minor)) {
      const shown = this.smoothedOf(drawn) ?? drawn.ys;
      let i = lowerBound(drawn.xs, range[1]);
      if (i === drawn.xs.length || drawn.xs[i] > range[1]) --i;
      while (i >= 0 && Number.isNaN(shown[i])) --i;
      if (i >= 0 && drawn.xs[i] >= range[0]) tags.push({ run: drawn.run, top: this.y.at(shown[i]),
        left: i + 1 < drawn.xs.length ? this.inside.right : this.x.at(drawn.xs[i]) });
    }
    tags.sort((a, b) => a.top - b.top);
    const gap = 13;
    if (tags.length * gap > this.inside.bottom - this.inside.top) return;
    for (const [i, tag] of tags.entries()) if (i > 0) tag.top = Math.max(tag.top, tags[i - 1].top + gap);
    for (let i = tags.length - 1, limit = this.inside.bottom; i >= 0; --i, limit -= gap) tags[i].top = Math.min(tags[i].top, limit);
    for (const tag of tags)
      this.label("tag", tag.run.tag, { top: tag.top, left: tag.left + 6, color: `var(${styleOf(tag.run).color})` });
  }

  rows(value) {
    let position = value;
    const rows = [];
    for (const { line, run, xs, ys, widths } of this.lines()) {
      let i = lowerBound(xs, value);
      if (i === xs.length || (i > 0 && value - xs[i - 1] < xs[i] - value)) --i;
      if (rows.length === 0) position = xs[i];
      const width = widths === null ? "" : ` ± ${formatNumber(widths[i], 3)}`;
      const name = this.document.runs.length > 1 ? [run.tag, nameOf(line, run)] : [line.name];
      rows.push(element("span", { class: "row" }, swatch(run), element("span", { class: "name" }, name.filter(n => n).join(" · ")),
        element("span", { class: "value" }, formatNumber(ys[i], 5) + width)));
    }
    return { position, rows };
  }
}
