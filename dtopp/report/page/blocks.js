// Creates the elements of a section: charts, tables, pictures, text, choices and collapsible details.
function isNumber(cell) { return typeof cell === "string" && /^[+−–<\d]/.test(cell); }

function cellElement(cell, document_, tag) {
  if (typeof cell !== "object" || cell === null) {
    return element(tag, { class: isNumber(cell) ? "number" : null }, cell);
  }
  const run = document_.runs[cell.run];
  return element(tag, { class: "run" }, swatch(run), document_.runs.length > 1 ? element("b", null, run.tag) : null, run.name);
}

function tableElement(block, document_) {
  const kinds = block.head.map((_, i) => block.rows.some(row => isNumber(row[i])) ? "number" : null);
  const head = element("tr", null, ...block.head.map((text, i) => element("th", { scope: "col", class: kinds[i] }, text)));
  const rows = block.rows.map(row =>
    element("tr", null, ...row.map((cell, i) => cellElement(cell, document_, i === 0 ? "th" : "td"))));
  return element("div", { class: "table" },
    element("table", null, element("caption", null, block.title), element("thead", null, head), element("tbody", null, ...rows)),
    block.note ? element("p", { class: "note" }, block.note) : null);
}

function pictureElement(block, document_) {
  const run = document_.runs.length > 1 ? element("span", { class: "unit" }, document_.runs[block.run].name) : null;
  return element("figure", { class: "picture" }, element("figcaption", null, element("h3", null, block.title), run),
    element("img", { src: "data:image/png;base64," + block.png, alt: block.title }));
}

// Shows one of several panels. The selected panel stays selected when the document is rendered again.
const choices = new Map();

function choiceElement(block, document_) {
  const panels = block.options.map(option =>
    element("div", { class: "blocks", hidden: true }, ...option.blocks.map(b => blockElement(b, document_))));
  const show = index => {
    choices.set(block.id, index);
    for (const [i, panel] of panels.entries()) panel.hidden = i !== index;
    redraw();
  };
  const chosen = Math.min(choices.get(block.id) ?? 0, panels.length - 1);
  const select = element("select", { onchange: event => show(event.target.selectedIndex) },
    ...block.options.map((option, i) => element("option", { selected: i === chosen }, option.name)));
  show(chosen);
  const label = panels.length > 1 ? element("label", null, block.title + " ", select) : null;
  return element("div", { class: "choice" }, label, ...panels);
}

const opened = new Set();

function blockElement(block, document_) {
  switch (block.type) {
    case "lines": return new LineChart(block, document_).element;
    case "heat": return new HeatMap(block, document_).element;
    case "table": return tableElement(block, document_);
    case "picture": return pictureElement(block, document_);
    case "choice": return choiceElement(block, document_);
    case "details": {
      const details = element("details", { open: opened.has(block.title) }, element("summary", null, block.title),
        element("div", { class: "blocks" }, ...block.blocks.map(b => blockElement(b, document_))));
      details.addEventListener("toggle", () => details.open ? opened.add(block.title) : opened.delete(block.title));
      return details;
    }
    default: throw new Error("unknown block " + block.type);
  }
}

function sectionElement(section, document_) {
  return element("section", { id: section.id }, element("h2", null, section.title),
    ...section.answers.map(text => element("p", { class: "answer" }, text)),
    element("div", { class: "blocks" }, ...section.blocks.map(block => blockElement(block, document_))));
}

// Returns every chart in these blocks, including those in collapsed details.
function* chartsOf(blocks) {
  for (const block of blocks) {
    if (block.type === "lines" || block.type === "heat") yield block;
    for (const inner of [block.blocks ?? [], ...(block.options ?? []).map(option => option.blocks)]) yield* chartsOf(inner);
  }
}

function numbers(values) { return Array.from(values, v => Number.isNaN(v) ? null : v); }

function describeChart(block, document_) {
  const x = line => numbers(block.own_x ? valuesOf(line.x) : positionsOf(document_.clocks, line, view.axis) ?? []);
  const series = block.type === "heat"
    ? block.cells.map((id, row) => ({ name: `${block.y_label} ${block.rows[row]}`, x: x(block), y: numbers(valuesOf(id)) }))
    : block.lines.map(line => ({ name: nameOf(line, document_.runs[line.run]), x: x(line),
      y: numbers(valuesOf(line.y)), ...(line.band === undefined ? {} : { half_width: numbers(valuesOf(line.band)) }) }));
  const isOneOfMany = block.type === "heat" && document_.runs.length > 1;
  const title = block.title + (isOneOfMany ? " · " + document_.runs[block.run].name : "");
  return { title, x_label: block.own_x ?? AXES[view.axis], y_label: block.y_label, series };
}
