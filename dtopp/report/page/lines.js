// Draws a line on a canvas in device pixels. Each pixel column shows the minimum and maximum of its points.

// Calls emit(pixel, first, low, high, last) for each pixel column with points, and gap() at each break of the line.
function eachPixel(xs, ys, from, to, x, y, emit, gap) {
  const { factor: factorX, base: baseX, isLog: isLogX } = x, { factor: factorY, base: baseY, isLog: isLogY } = y;
  let column = NaN, first = 0, low = 0, high = 0, last = 0;
  for (let i = from; i < to; ++i) {
    const py = baseY + (isLogY ? Math.log10(ys[i]) : ys[i]) * factorY;
    if (!(py > -1e7 && py < 1e7)) {
      if (column === column) emit(column, first, low, high, last);
      column = NaN;
      gap();
      continue;
    }
    const px = Math.round(baseX + (isLogX ? Math.log10(xs[i]) : xs[i]) * factorX);
    if (px === column) {
      if (py < low) low = py;
      if (py > high) high = py;
      last = py;
    } else {
      if (column === column) emit(column, first, low, high, last);
      column = px;
      first = low = high = last = py;
    }
  }
  if (column === column) emit(column, first, low, high, last);
}

function tracePath(context, xs, ys, from, to, x, y) {
  let open = false;
  context.beginPath();
  eachPixel(xs, ys, from, to, x, y, (px, first, low, high, last) => {
    if (open) context.lineTo(px, first);
    else context.moveTo(px, first);
    // A single point between gaps appears as a dot, because line caps are round.
    if (!open && low === high) context.lineTo(px + 0.01, first);
    open = true;
    if (low === high) return;
    context.lineTo(px, low);
    context.lineTo(px, high);
    context.lineTo(px, last);
  }, () => { open = false; });
  context.stroke();
}

// Fills the area between y − width and y + width.
function fillBand(context, xs, ys, widths, from, to, x, y) {
  let upper = [], lower = [];
  const close = () => {
    if (upper.length > 1) {
      context.beginPath();
      for (const [px, py] of upper) context.lineTo(px, py);
      for (const [px, py] of lower.reverse()) context.lineTo(px, py);
      context.fill();
    }
    upper = [];
    lower = [];
  };
  for (let i = from; i < to; ++i) {
    if (!(widths[i] >= 0) || Number.isNaN(ys[i])) {
      close();
      continue;
    }
    const px = Math.round(x.at(xs[i]));
    let top = y.at(ys[i] + widths[i]), bottom = y.at(ys[i] - widths[i]);
    if (!(bottom < 1e7)) bottom = 1e7;
    const n = upper.length - 1;
    if (n >= 0 && upper[n][0] === px) {
      upper[n][1] = Math.min(upper[n][1], top);
      lower[n][1] = Math.max(lower[n][1], bottom);
    } else {
      upper.push([px, top]);
      lower.push([px, bottom]);
    }
  }
  close();
}

// Outlines of markers around (0, 0). The run selects the marker, so that runs can be identified without colors.
const MARKERS = [
  (c, r) => c.arc(0, 0, r, 0, 7),
  (c, r) => c.rect(-r * 0.9, -r * 0.9, r * 1.8, r * 1.8),
  (c, r) => { c.moveTo(0, -r * 1.2); c.lineTo(r * 1.1, r * 0.8); c.lineTo(-r * 1.1, r * 0.8); c.closePath(); },
  (c, r) => { c.moveTo(0, -r * 1.3); c.lineTo(r * 1.3, 0); c.lineTo(0, r * 1.3); c.lineTo(-r * 1.3, 0); c.closePath(); },
];

function drawMarkers(context, xs, ys, from, to, x, y, shape, radius) {
  for (let i = from; i < to; ++i) {
    const py = y.at(ys[i]);
    if (!(py > -1e7 && py < 1e7)) continue;
    context.save();
    context.translate(x.at(xs[i]), py);
    context.beginPath();
    MARKERS[shape % MARKERS.length](context, radius);
    context.fill();
    context.restore();
  }
}

// Returns means with weights that fall exponentially on both sides of each point, over about `share` of the points. Gaps stay
// gaps. The result is null with a share of 0 or fewer than 100 points.
function smoothed(ys, share) {
  if (share === 0 || ys.length < 100) return null;
  const keep = Math.exp(-2 / Math.max(2, share * ys.length));
  const sums = new Float64Array(ys.length), weights = new Float64Array(ys.length);
  const sweep = (first, end, step) => {
    let sum = 0, weight = 0;
    for (let i = first; i !== end; i += step) {
      sums[i] += sum;
      weights[i] += weight;
      const isThere = ys[i] === ys[i];
      sum = (sum + (isThere ? ys[i] : 0)) * keep;
      weight = (weight + (isThere ? 1 : 0)) * keep;
    }
  };
  sweep(0, ys.length, 1);
  sweep(ys.length - 1, -1, -1);
  const means = new Float32Array(ys.length);
  for (let i = 0; i < ys.length; ++i) means[i] = (sums[i] + ys[i]) / (weights[i] + 1);
  return means;
}
