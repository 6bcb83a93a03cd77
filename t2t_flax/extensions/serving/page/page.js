// The page: a form, the translations of each line with their scores, and the attention of the chosen one.

const TRANSLATIONS = 4;
const RETRY_MS = 2000; // while the models are loaded
const by = (id) => document.getElementById(id);
const [text, modelSelect, target, button, results] = ["text", "model", "target", "translate", "results"].map(by);
const [kind, head] = ["kind", "head"].map(by);

let models = [];
let key = "";
let running = new AbortController(); // of the newest translation
let pair = null; // the answer of api/attention

function node(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children); // strings become text nodes, so that markup in them stays text
  return made;
}

function say(message, failed = false) {
  by("status").textContent = message;
  by("status").classList.toggle("failed", failed);
}

async function ask(path, body, signal) {
  const headers = { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  const options = body ? { method: "POST", body: JSON.stringify(body), headers, signal } : {};
  const response = await fetch(`api/${path}`, options);
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  if (response.status === 403) {
    const given = window.prompt("API key of this server")?.trim();
    if (given) {
      key = given;
      return ask(path, body, signal);
    }
  }
  throw new Error(answer.error ?? `The server answered ${response.status}.`);
}

function language(code) {
  if (code === "mul") return "several languages"; // ISO 639-2
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
  } catch {
    return code;
  }
}

const chosenModel = () => models.find(({ name }) => name === modelSelect.value);

const request = (fields) => {
  const { name, target_languages } = chosenModel();
  return { model: name, ...fields, ...(target_languages.length ? { target_language: target.value } : {}) };
};

async function start() {
  try {
    models = await ask("models");
  } catch (error) {
    say(`${error.message} Trying again …`);
    setTimeout(start, RETRY_MS);
    return;
  }
  modelSelect.replaceChildren(...models.map(({ name }) => new Option(name)));
  by("model-field").hidden = models.length < 2;
  say("");
  button.disabled = false;
  chooseModel();
}

function chooseModel() {
  const model = chosenModel();
  target.replaceChildren(...model.target_languages.map((code) => new Option(language(code), code)));
  by("target-field").hidden = !model.target_languages.length;
  by("facts").textContent = [
    `${language(model.source)} to ${language(model.target)}`,
    `update ${model.steps.join(", ")}`,
    `${model.layers.encoder} + ${model.layers.decoder} layers`,
    `${model.heads} heads`,
    `${model.parameters.toLocaleString("en")} parameters`,
  ].join(" · ");
  clear();
}

function clear() {
  running.abort();
  results.replaceChildren();
  by("attention").hidden = true;
}

async function translate() {
  clear();
  const lines = text.value.split(/\r?\n/).filter((line) => line.trim());
  if (!lines.length) return;
  const { signal } = (running = new AbortController());
  say("Translating …");
  const began = performance.now();
  try {
    const fields = { text: lines, n_best: Math.min(TRANSLATIONS, chosenModel().max_n_best) };
    const { translations } = await ask("translate", request(fields), signal);
    say(`${((performance.now() - began) / 1000).toFixed(2)} s`);
    results.replaceChildren(...translations.map(translationsOf));
    results.querySelector("input").click();
  } catch (error) {
    if (error.name !== "AbortError") say(error.message, true);
  }
}

function translationsOf({ source, hypotheses }) {
  const choices = hypotheses.map(({ text: written, score }) => {
    const radio = node("input", { type: "radio", name: "chosen", onchange: () => attend(source, written) });
    const shown = node("span", { className: "text", dir: "auto" }, written || "—");
    return node("label", {}, radio, shown, node("span", { className: "score" }, score.toFixed(3)));
  });
  return node("fieldset", {}, node("legend", { dir: "auto" }, source), ...choices);
}

async function attend(source, written) {
  by("attention").hidden = true;
  if (!written) return;
  const { signal } = running;
  try {
    pair = await ask("attention", request({ source, target: written }), signal);
  } catch (error) {
    if (error.name !== "AbortError") say(`No attention: ${error.message}`, true);
    return;
  }
  if (signal.aborted) return;
  const heads = pair.cross.flatMap((layer, l) =>
    layer.map((_, h) => new Option(`layer ${l + 1}, head ${h + 1}`, `${l},${h}`)),
  );
  head.replaceChildren(new Option("mean of all", "mean"), ...heads);
  by("attention").hidden = false;
  draw();
}

const shownPiece = (piece) => piece.replaceAll("\u2581", " ").trim() || "\u2423"; // SentencePiece's sign of a space

/** Fills the table: a row for each piece, a column for each piece that it looks at. */
function draw() {
  const { source_pieces: source, target_pieces: written } = pair;
  const rows = kind.value === "encoder" ? source : written;
  const columns = kind.value === "decoder" ? ["<start>", ...written.slice(0, -1)] : source;
  const all = pair[kind.value];
  const [l, h] = head.value.split(",").map(Number);
  const matrices = head.value === "mean" ? all.flat() : [all[l]?.[h] ?? all[0][0]];
  const weight = (r, c) => matrices.reduce((sum, matrix) => sum + matrix[r][c], 0) / matrices.length / 10;
  const header = node("tr", {}, node("td"), ...columns.map((piece) => node("th", { scope: "col" }, shownPiece(piece))));
  const body = rows.map((piece, r) => {
    const cells = columns.map((_, c) => {
      const cell = node("td", {}, weight(r, c) < 0.5 ? "" : String(Math.round(weight(r, c))));
      cell.style.background = `color-mix(in srgb, var(--shade) ${weight(r, c)}%, transparent)`;
      return cell;
    });
    return node("tr", {}, node("th", { scope: "row" }, shownPiece(piece)), ...cells);
  });
  by("weights").replaceChildren(header, ...body);
}

by("form").addEventListener("submit", (event) => {
  event.preventDefault();
  translate();
});
by("form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !button.disabled) {
    event.preventDefault();
    translate();
  }
});
modelSelect.addEventListener("change", chooseModel);
target.addEventListener("change", translate);
for (const select of [kind, head]) select.addEventListener("change", draw);
start();
