// Stores the columns of numbers. A column is decoded when it is first drawn.
const columns = new Map();  // id → {kind, n, first, step, values}

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) bytes[i] = text.charCodeAt(i);
  return bytes;
}

function decode(column, base64) {
  if (column.kind === "affine") {
    const values = new Float64Array(column.n);
    for (let i = 0; i < values.length; ++i) values[i] = column.first + column.step * i;
    return values;
  }
  const bytes = bytesOf(base64);
  return column.kind === "f64" ? new Float64Array(bytes.buffer) : new Float32Array(bytes.buffer);
}

function declareColumns(list) {
  for (const column of list) columns.set(column.id, { ...column, values: null });
}

// Returns whether the browser has loaded this column: while the page loads, an element after it must exist.
function isLoaded(id) {
  const column = columns.get(id);
  if (column.values !== null || column.kind === "affine" || document.readyState !== "loading") return true;
  const element = document.getElementById("column-" + id);
  return element !== null && element.nextSibling !== null;
}

// Returns the numbers of a column. On first use they are decoded from the element that holds their text.
function valuesOf(id) {
  const column = columns.get(id);
  if (column.values === null) {
    const element = document.getElementById("column-" + id);
    column.values = decode(column, element === null ? "" : element.textContent);
    if (element !== null) element.remove();
  }
  return column.values;
}

// Appends numbers from the server, beginning at index `from` of the column.
function extendColumn(column, base64) {
  const added = decode(column, base64);
  if (column.kind === "affine" || column.from === 0) {
    columns.set(column.id, { ...column, values: added });
    return;
  }
  const known = valuesOf(column.id);
  const values = new added.constructor(column.n);
  values.set(known.subarray(0, column.from));
  values.set(added, column.from);
  columns.set(column.id, { ...column, values });
}

// Returns the first index whose value is at least `value`. Values must be ascending.
function lowerBound(values, value) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Returns a run's clock at a step, interpolated linearly between training lines and from 0 before the first.
function clockAt(steps, clock, step) {
  const i = lowerBound(steps, step);
  if (i === steps.length) return clock[i - 1];
  if (steps[i] === step) return clock[i];
  const [step0, clock0] = i === 0 ? [0, 0] : [steps[i - 1], clock[i - 1]];
  return clock0 + (clock[i] - clock0) * (step - step0) / (steps[i] - step0);
}

const clockCache = new Map();  // "run axis column" → {source, values}

// Returns the positions of a line's points on an axis ("step", "tokens", "flops", "hours"). The result is null if the run
// lacks that axis. A run without any training line has only "step".
function positionsOf(clocks, line, axis) {
  const steps = valuesOf(line.x);
  const clock = clocks[line.run];
  if (axis === "step" || clock === undefined) return steps;
  if (clock === null || clock[axis] === undefined) return null;
  if (clock.steps === line.x) return valuesOf(clock[axis]);
  const key = `${line.run} ${axis} ${line.x}`;
  const cached = clockCache.get(key);
  if (cached !== undefined && cached.source === steps) return cached.values;
  const from = valuesOf(clock.steps), to = valuesOf(clock[axis]);
  const values = Float64Array.from(steps, step => clockAt(from, to, step));
  clockCache.set(key, { source: steps, values });
  return values;
}
