// Draws rows (layers) over steps or another x, with one color per value. A pixel column shows the mean of its cells.

// Colors from dark blue to light yellow (after cividis). Lightness rises evenly, so that the order is visible without color.
const HEAT = [[0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115], [138, 134, 120], [165, 156, 116],
  [195, 179, 105], [225, 204, 85], [254, 232, 56]];

function heatColor(share) {
  const at = Math.min(Math.max(share, 0), 1) * (HEAT.length - 1), i = Math.min(Math.floor(at), HEAT.length - 2);
  return HEAT[i].map((v, c) => v + (HEAT[i + 1][c] - v) * (at - i));
}

class HeatMap extends Plot {
  constructor(block, document_) {
    super(block, document_);
    this.element.classList.add("heat");
    this.area.style.height = Math.min(Math.max(block.rows.length * 14, 84), 280) + MARGIN.top + MARGIN.bottom + "px";
    this.scaleBar = element("span", { class: "scale" });
    this.buttons.append(this.scaleBar);
  }

  positions() { return this.block.own_x ? valuesOf(this.block.x) : positionsOf(this.document.clocks, this.block, view.axis); }
  cells() { return this.block.cells.map(valuesOf); }
  extent() {
    const xs = this.positions();
    return [xs[0] - 0.5, xs[xs.length - 1] + 0.5];
  }
  yScale(range, inside) { return makeScale(0, this.block.rows.length, false, inside.top, inside.bottom); }
  hasGrid() { return false; }
  yTicks() {
    const stride = Math.ceil(this.block.rows.length * 13 / (this.inside.bottom - this.inside.top));
    return this.block.rows.flatMap((_, i) => i % stride === 0 ? [i + 0.5] : []);
  }
  label(kind, text, place) { super.label(kind, kind === "y" ? this.block.rows[Math.floor(Number(text))] : text, place); }

  // The color range omits the outer hundredth on either side. A spike in the first steps would otherwise compress the rest.
  limits(cells) {
    const stride = Math.ceil(cells.length * cells[0].length / 20000);
    const sample = cells.flatMap(row => Array.from(row).filter((v, i) => i % stride === 0 && !Number.isNaN(v)));
    sample.sort((a, b) => a - b);
    if (sample.length === 0) return [0, 1];
    const cut = Math.floor(sample.length / 100);
    const [low, high] = [sample[cut], sample[sample.length - 1 - cut]];
    this.isCut = [sample[0] < low, sample[sample.length - 1] > high];
    return high > low ? [low, high] : [sample[0], sample[sample.length - 1]];
  }

  // Returns the borders between columns of cells, half-way between their positions.
  edges(xs) {
    const edges = new Float64Array(xs.length + 1);
    for (let i = 1; i < xs.length; ++i) edges[i] = (xs[i - 1] + xs[i]) / 2;
    const half = xs.length > 1 ? xs[1] - xs[0] : 1;
    edges[0] = xs[0] - half / 2;
    edges[xs.length] = xs[xs.length - 1] + (xs.length > 1 ? xs[xs.length - 1] - xs[xs.length - 2] : 1) / 2;
    return edges;
  }

  paint(context, ratio, range, inside) {
    const xs = this.positions(), cells = this.cells();
    if (xs === null || xs.length === 0) return;
    const [low, high] = this.limits(cells);
    this.showScale(low, high);
    const left = Math.round(inside.left * ratio), width = Math.max(1, Math.round((inside.right - inside.left) * ratio));
    const x = makeScale(range[0], range[1], this.isLogX(), 0, width);
    const edges = this.edges(xs);
    const image = new ImageData(width, cells.length);
    for (let px = 0; px < width; ++px) {
      const from = lowerBound(edges, x.value(px)) - 1, to = Math.max(from + 1, lowerBound(edges, x.value(px + 1)) - 1);
      if (to < 1 || from >= xs.length) continue;
      const window = [Math.max(from, 0), Math.min(to, xs.length)];
      for (const [row, values] of cells.entries()) this.setPixel(image, px, row, values, window, low, high);
    }
    const rows = new OffscreenCanvas(width, cells.length);
    rows.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(rows, left, Math.round(inside.top * ratio), width, Math.round((inside.bottom - inside.top) * ratio));
  }

  setPixel(image, px, row, values, [from, to], low, high) {
    let sum = 0, count = 0;
    for (let i = from; i < to; ++i) {
      if (Number.isNaN(values[i])) continue;
      sum += values[i];
      ++count;
    }
    if (count === 0) return;
    const at = 4 * (row * image.width + px);
    image.data.set(heatColor(high > low ? (sum / count - low) / (high - low) : 0), at);
    image.data[at + 3] = 255;
  }

  showScale(low, high) {
    const stops = HEAT.map(color => `rgb(${color})`).join(",");
    const [below, above] = this.isCut ?? [false, false];
    this.scaleBar.replaceChildren((below ? "≤ " : "") + formatNumber(low, 3),
      element("span", { class: "bar", style: `background:linear-gradient(90deg,${stops})` }),
      (above ? "≥ " : "") + formatNumber(high, 3));
  }

  rows(value) {
    const xs = this.positions();
    if (xs === null) return { position: value, rows: [] };
    let i = lowerBound(xs, value);
    if (i === xs.length || (i > 0 && value - xs[i - 1] < xs[i] - value)) --i;
    const rows = this.cells().map((values, row) => element("span", { class: "row" },
      element("span", { class: "name" }, `${this.block.y_label} ${this.block.rows[row]}`),
      element("span", { class: "value" }, formatNumber(values[i], 4))));
    return { position: xs[i], rows };
  }
}
