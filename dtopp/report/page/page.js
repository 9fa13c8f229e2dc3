// Builds the page: the header with the controls, and the sections. Updates both when the document changes.
let report = null;

function choose(axis) {
  view.axis = axis;
  view.range = null;
  zoom(null);
}

function axisControl(document_) {
  const isKnown = axis => axis === "step" || document_.clocks.some(clock => clock !== null && clock[axis] !== undefined);
  const known = Object.keys(AXES).filter(isKnown);
  return element("fieldset", { class: "segments" }, element("legend", null, "against"), ...known.map(axis => element("label", null,
    element("input", { type: "radio", name: "axis", value: axis, checked: axis === view.axis, onchange: () => choose(axis) }),
    element("span", null, AXES[axis]))));
}

function smoothingControl() {
  const shares = [0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1];
  const text = () => view.smoothing === 0 ? "off" : `≈ ${formatNumber(view.smoothing * 100)} % of a run`;
  const shown = element("output", null, text());
  const slider = element("input", { type: "range", min: 0, max: shares.length - 1, step: 1, value: shares.indexOf(view.smoothing),
    oninput: event => { view.smoothing = shares[event.target.value]; shown.textContent = text(); redraw(); } });
  return element("label", { class: "smoothing" }, "smoothing ", slider, shown);
}

function toggle(text, isPressed, act) {
  const button = element("button", { type: "button", "aria-pressed": String(isPressed),
    onclick: () => button.setAttribute("aria-pressed", String(act())) }, text);
  return button;
}

// Switches between the system's color scheme and the other one.
function themeControl() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const button = element("button", { type: "button", class: "theme", "aria-label": "dark or light",
    onclick: () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; redraw(); } }, "◐");
  return button;
}

function legend(document_) {
  if (document_.runs.length < 2) return null;
  const chip = (run, index) => {
    const button = element("button", { type: "button", class: "chip", title: run.about, "aria-pressed": String(!view.hidden.has(index)),
      onclick: event => {
        if (event.shiftKey) onlyRun(index, document_.runs.length);
        else if (!view.hidden.delete(index)) view.hidden.add(index);
        const chips = [...button.parentNode.children];
        for (const [i, other] of chips.entries()) other.setAttribute("aria-pressed", String(!view.hidden.has(i)));
        redraw();
      } }, swatch(run), element("b", null, run.tag), run.name);
    return button;
  };
  return element("div", { class: "legend", role: "group", "aria-label": "runs: click to hide or show one, Shift-click to show only that one" },
    ...document_.runs.map(chip));
}

// Shows only this run, or all runs if it is already the only one.
function onlyRun(index, count) {
  const isAlone = view.hidden.size === count - 1 && !view.hidden.has(index);
  view.hidden.clear();
  if (isAlone) return;
  for (let i = 0; i < count; ++i) if (i !== index) view.hidden.add(i);
}

function header(document_) {
  const links = element("nav", { "aria-label": "sections" },
    ...document_.sections.map(section => element("a", { href: "#" + section.id }, section.title)));
  return [element("header", null, element("h1", null, document_.title), element("p", { class: "about" }, document_.about), links),
    element("div", { class: "controls" }, axisControl(document_),
      toggle("log x", view.logX, () => { view.logX = !view.logX; zoom(null); return view.logX; }), smoothingControl(),
      element("button", { type: "button", class: "reset", onclick: () => zoom(null) }, "show all"), themeControl(),
      legend(document_))];
}

// Returns the content of the header as text. An unchanged header is not rebuilt, so that a slider in use keeps working.
function headOf(document_) {
  const sections = document_.sections.map(section => section.title);
  return JSON.stringify([document_.title, document_.runs, sections, Object.keys(document_.clocks[0] ?? {})]);
}

function render(document_) {
  const root = document.getElementById("report");
  const focused = document.activeElement?.closest("figure")?.plot.block.title;
  for (const plot of view.plots) plot.close();
  view.plots = [];
  const isSameHead = report !== null && headOf(report) === headOf(document_);
  const head = isSameHead ? [...root.querySelectorAll("header, .controls")] : header(document_);
  report = document_;
  document.title = document_.title;
  const help = "Drag across a chart to zoom all charts; double-click to reset. Keyboard: Tab selects a chart, arrow keys read "
    + "values (with Shift in longer steps), + and − zoom, 0 shows all, l switches the y axis to logarithmic.";
  root.replaceChildren(...head, ...document_.sections.map(section => sectionElement(section, document_)),
    element("footer", null, element("p", null, help), ...document_.notes.map(note => element("p", null, note))));
  if (isSameHead) root.querySelector(".about").textContent = document_.about;
  if (focused !== undefined) view.plots.find(plot => plot.block.title === focused)?.area.focus({ preventScroll: true });
  redraw();
}

// Printing uses the light scheme, draws charts that were never visible, and draws at print resolution.
function forPrint(isPrint) {
  document.documentElement.classList.toggle("print", isPrint);
  for (const plot of view.plots) {
    plot.pixelRatio = isPrint ? 3 : null;
    plot.isDirty = true;
    if (isPrint || plot.isVisible) plot.refresh();
  }
}
matchMedia("print").addEventListener("change", event => forPrint(event.matches));
addEventListener("beforeprint", () => forPrint(true));
addEventListener("afterprint", () => forPrint(false));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

window.dtoppReport = {
  charts: () => report.sections.flatMap(section => [...chartsOf(section.blocks)]).map(block => describeChart(block, report)),
};
