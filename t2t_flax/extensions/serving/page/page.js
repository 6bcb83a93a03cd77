// The page: the form, the requests that it starts, one panel for each run.

import { Panel } from "./panel.js";
import { getModels } from "./server.js";
import { count, language, languageTag, node } from "./text.js";

const PAUSE_MS = 600; // of typing, before the text is translated
const LONG_LINE = 600; // characters: longer ones wait for the button
const RETRY_MS = 2000; // while the server is not ready
const DEFAULT_TRANSLATIONS = 4;

const by = (id) => document.getElementById(id);
const [form, text, prefix, nBest, modelSelect, otherSelect] = ["form", "text", "prefix", "n-best", "model", "other"].map(by);
const target = by("target");
const [button, typing, status, results, empty, note] = ["translate", "typing", "status", "results", "empty", "text-note"].map(by);

let models = [];
let panels = [];
let running = null; // the AbortController of the newest translation
let timer = 0;

const say = (...parts) => status.replaceChildren(...parts);
const linesOf = () => text.value.split(/\r?\n/).map((line) => line.trim()).filter((line) => line);

async function start() {
  try {
    models = await getModels();
    if (!models.length) throw Object.assign(new Error("The server has no run."), { notReady: true });
  } catch (error) {
    say(`The runs are not ready. ${error.message} Trying again …`);
    setTimeout(start, RETRY_MS);
    return;
  }
  const options = () => models.map(({ name }) => new Option(name, name));
  modelSelect.replaceChildren(...options());
  otherSelect.replaceChildren(new Option("no other run", ""), ...options());
  by("model-field").hidden = by("other-field").hidden = models.length < 2;
  say("");
  button.disabled = false;
  choosePanels();
  if (text.value.trim()) translate();
}

/** Makes the panels of the chosen runs. */
function choosePanels() {
  const names = [modelSelect.value, otherSelect.value === modelSelect.value ? "" : otherSelect.value];
  for (const option of otherSelect.options) option.disabled = option.value === modelSelect.value;
  if (otherSelect.selectedOptions[0]?.disabled) otherSelect.value = "";
  panels.forEach((panel) => panel.close());
  const chosen = names.map((name) => models.find((model) => model.name === name)).filter((model) => model);
  const languages = [...new Set(chosen.flatMap((model) => model.target_languages))];
  const before = target.value;
  target.replaceChildren(...languages.map((code) => new Option(language(code), code)));
  target.value = languages.includes(before) ? before : (languages[0] ?? "");
  by("target-field").hidden = !languages.length;
  panels = chosen.map((model, i) => {
    const into = model.target_languages.length ? { target: target.value, target_language: target.value } : {};
    return new Panel({ ...model, ...into }, `run-${i + 1}`, choose);
  });
  const { source } = panels[0].model;
  by("text-label").textContent = language(source) || "Source text";
  text.lang = languageTag(source) ?? "";
  prefix.lang = languageTag(panels[0].model.target) ?? "";
  const most = Math.max(...panels.map((panel) => panel.model.max_n_best));
  const wanted = Number(nBest.value) || DEFAULT_TRANSLATIONS;
  nBest.replaceChildren(...Array.from({ length: most }, (_, i) => new Option(i + 1, i + 1)));
  nBest.value = Math.min(wanted, most);
}

/** A sentence and the rank of its translation, in all panels. */
function choose(line, rank) {
  panels.forEach((panel) => panel.choose(line, rank));
  mark();
}

function mark() {
  const [first, second] = panels;
  if (!second?.chosen || !first.chosen) {
    panels.forEach((panel) => panel.mark(null));
    return;
  }
  first.mark(second.chosen.text);
  second.mark(first.chosen.text);
}

async function translate() {
  clearTimeout(timer);
  running?.abort();
  const lines = linesOf();
  empty.hidden = lines.length > 0;
  if (!lines.length) {
    results.replaceChildren();
    say("");
    return;
  }
  if (!models.length) return;
  const request = (running = new AbortController());
  results.classList.toggle("two", panels.length > 1);
  if (!results.children.length || results.children.length !== panels.length) {
    results.replaceChildren(...panels.map((panel) => panel.root));
  }
  say("Translating …");
  const started = performance.now();
  const options = { prefix: prefix.value.trim(), nBest: Number(nBest.value) };
  const answers = await Promise.allSettled(panels.map((panel) => panel.translate(lines, options, request.signal)));
  if (request.signal.aborted) return;
  const failed = answers.find((answer) => answer.status === "rejected");
  mark();
  if (failed) {
    const again = node("button", { type: "button", className: "again" }, "Try again");
    again.addEventListener("click", translate);
    say("Not translated. ", again);
    return;
  }
  const ms = performance.now() - started;
  const time = ms < 995 ? `${Math.max(1, Math.round(ms / 10)) * 10}\u202fms` : `${(ms / 1000).toFixed(1)}\u202fs`;
  say(`${lines.length > 1 ? `${count(lines.length)} sentences` : "Translated"} in ${time}`);
}

function whenTyped() {
  clearTimeout(timer);
  const long = linesOf().some((line) => line.length > LONG_LINE);
  note.textContent = long
    ? `A line of more than ${count(LONG_LINE)} characters: one sentence per line is translated best. Press Translate.`
    : "One sentence per line.";
  note.classList.toggle("warning", long);
  if (!linesOf().length) translate();
  else if (typing.checked && !long) timer = setTimeout(translate, PAUSE_MS);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  translate();
});
form.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || button.disabled) return;
  event.preventDefault();
  translate();
});
text.addEventListener("input", whenTyped);
prefix.addEventListener("input", whenTyped);
nBest.addEventListener("change", translate);
for (const select of [modelSelect, otherSelect, target]) {
  select.addEventListener("change", () => {
    choosePanels();
    results.replaceChildren();
    translate();
  });
}
start();
