const element = id => document.getElementById(id);
let model = null, running = null, most = 2;

function headers() {
  const token = element("token").value;
  return token ? {"Content-Type": "application/json", Authorization: `Bearer ${token}`} : {"Content-Type": "application/json"};
}

function say(text, failed = false) {
  element("status").textContent = text;
  element("status").classList.toggle("failed", failed);
}

async function failure(response) {
  const body = await response.json().catch(() => null);
  return body?.error?.message ?? `the server answered ${response.status}`;
}

async function loadModel() {
  const response = await fetch("/v1/models", {headers: headers()});
  element("token-label").hidden = element("token-label").hidden && response.status !== 401;
  if (!response.ok) return say(response.status === 401 ? "This server needs its token." : await failure(response), true);
  model = (await response.json()).data[0];
  say("");
  document.title = `${model.id} – dtopp`;
  element("name").textContent = model.id;
  element("budget-label").hidden = model.num_experts === 0;
  if (model.num_experts === 0) element("about").textContent = "The model continues your text. It is dense: every token uses all of it.";
  const budget = element("budget");
  budget.max = model.largest_target_experts;
  budget.disabled = model.largest_target_experts === 0;
  const tokens = element("max-tokens");
  tokens.max = model.sequence_length;
  tokens.value = Math.min(tokens.value, Math.floor(model.sequence_length / 2));
}

// Blue for few experts, orange for many.
function colour(experts) {
  const share = Math.min(Math.max((experts - 1) / Math.max(most - 1, 1), 0), 1);
  return `color-mix(in srgb, color-mix(in oklab, var(--run-1) ${Math.round(100 * share)}%, var(--run-0)) ${Math.round(25 + 30 * share)}%, transparent)`;
}

function addToken(text, experts) {
  const token = document.createElement("span");
  token.className = "token";
  token.textContent = text;
  if (experts.length > 0) {
    const mean = experts.reduce((sum, value) => sum + value, 0) / experts.length;
    token.dataset.experts = mean;
    token.title = `${mean.toFixed(2)} experts`;
    if (mean > most) {
      most = mean;
      for (const earlier of element("text").querySelectorAll("[data-experts]")) earlier.style.background = colour(Number(earlier.dataset.experts));
    }
    token.style.background = colour(mean);
    element("scale").hidden = false;
    element("scale-high").textContent = most.toFixed(1);
  }
  element("text").append(token);
}

function addRun(target, usage, seconds) {
  const row = element("runs").querySelector("tbody").insertRow();
  const cells = [target || "as trained", usage.active_experts?.toFixed(2) ?? "–", usage.completion_tokens, (usage.completion_tokens / seconds).toFixed(1)];
  cells.forEach((value, index) => {
    const cell = row.insertCell();
    cell.textContent = value;
    if (index > 0) cell.className = "number";
  });
  element("runs").hidden = false;
}

// Calls take(event) for each event of the answer.
async function readEvents(response, take) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) throw new Error("the connection ended before the text did");
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      take(JSON.parse(data));
    }
  }
}

async function generate(prompt) {
  if (running) return;
  running = new AbortController();
  element("generate").disabled = element("continue").disabled = true;
  element("stop").disabled = false;
  element("text").replaceChildren();
  const given = document.createElement("span");
  given.className = "given";
  given.textContent = prompt;
  element("text").append(given);
  say("");
  const target = Number(element("budget").value), seed = element("seed").value;
  const body = {model: model?.id, prompt, stream: true, stream_options: {include_usage: true}, max_tokens: Number(element("max-tokens").value),
    temperature: Number(element("temperature").value), top_p: 0.95};
  if (target > 0) body.target_experts = target;
  if (target > 0 && model && !model.solved_target_experts.includes(target)) say(`The first text with ${target} experts waits until their threshold is solved.`);
  if (seed !== "") body.seed = Number(seed);
  const begin = performance.now();
  try {
    if (!model) await loadModel();
    const response = await fetch("/v1/completions", {method: "POST", headers: headers(), body: JSON.stringify(body), signal: running.signal});
    if (!response.ok) throw new Error(await failure(response));
    say("");
    if (target > 0) model.solved_target_experts.push(target);
    await readEvents(response, event => {
      for (const choice of event.choices) if (choice.text) addToken(choice.text, choice.active_experts ?? []);
      if (event.usage) addRun(target, event.usage, (performance.now() - begin) / 1000);
    });
  } catch (error) {
    if (error.name !== "AbortError") say(error.message, true);
  }
  running = null;
  element("generate").disabled = element("continue").disabled = false;
  element("stop").disabled = true;
}

for (const id of ["budget", "temperature"]) {
  element(id).addEventListener("input", () => {
    element(`${id}-value`).textContent = id === "budget" && element(id).value === "0" ? "as trained" : element(id).value;
  });
}
element("token").addEventListener("change", loadModel);
element("generate").addEventListener("click", () => generate(element("prompt").value));
element("continue").addEventListener("click", () => {
  element("prompt").value = element("text").textContent;
  generate(element("prompt").value);
});
element("stop").addEventListener("click", () => running?.abort());
element("prompt").addEventListener("keydown", event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) generate(element("prompt").value);
});
loadModel();
