// Maps numbers to pixels, computes ticks and formats numbers.

function makeScale(low, high, isLog, from, to) {
  const map = isLog ? Math.log10 : v => v;
  const factor = (to - from) / (map(high) - map(low) || 1), base = from - map(low) * factor;
  return {
    low, high, isLog, factor, base,
    at: v => base + map(v) * factor,
    value: pixel => { const v = (pixel - base) / factor; return isLog ? 10 ** v : v; },
  };
}

// Returns ticks at multiples of 1, 2, 2.5 or 5 times a power of ten.
function linearTicks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map(m => m * power).find(s => s >= rough * 0.999);
  const ticks = [];
  // + 0 turns −0 into 0.
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) ticks.push(i * step + 0);
  return ticks;
}

function logTicks(low, high, count) {
  const decades = Math.log10(high / low);
  if (decades < 1) return linearTicks(low, high, count).filter(v => v > 0);
  const ticks = [];
  const stride = Math.max(1, Math.ceil(decades / count));
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e += stride) {
    for (const m of decades < 3 ? [1, 2, 5] : [1]) {
      const v = m * 10 ** e;
      if (v >= low * 0.999 && v <= high * 1.001) ticks.push(v);
    }
  }
  return ticks;
}

function ticksOf(scale, count) {
  return scale.isLog ? logTicks(scale.low, scale.high, count) : linearTicks(scale.low, scale.high, count);
}

const SUFFIXES = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

// Formats with at most `digits` significant digits: 12345 → 12,345 or 12.35k, 0.000012 → 1.2e−5.
function formatNumber(value, digits = 4) {
  if (value === null || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && size < 1e-3) return value.toExponential(digits - 2).replace(/\.?0+e/, "e").replace("-", "−");
  if (Number.isInteger(value) && size < 1e6) return value.toLocaleString("en").replace("-", "−");
  for (const [unit, suffix] of SUFFIXES) {
    if (size >= unit && size >= 1e4) return trimmed(value / unit, digits) + suffix;
  }
  return trimmed(value, digits);
}

function trimmed(value, digits) {
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}
