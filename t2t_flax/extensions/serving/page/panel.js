// What one run answered: its translations with their scores, and the attention of the chosen one.

import { AttentionFigure } from "./figure.js";
import { postAttention, postTranslate } from "./server.js";
import { count, differences, language, languageTag, millions, node, score } from "./text.js";

function factsOf(model) {
  const steps = [model.steps].flat();
  const updates = steps.length > 1 ? `mean of ${steps.length} checkpoints` : `update ${count(steps[0])}`;
  const { encoder, decoder } = model.layers;
  return [
    `${language(model.source)} to ${language(model.target)}`,
    updates,
    `${encoder} + ${decoder} layers`,
    `${model.heads} heads`,
    `${millions(model.parameters)} parameters`,
    `beam ${model.beam_size}`,
  ].join(" \u00b7 ");
}

function check(choices, index) {
  choices.querySelectorAll("input").forEach((radio, i) => (radio.checked = i === index));
}

export class Panel {
  /** `onChoice(line, rank)` is called when the reader chooses a sentence or one of its translations. */
  constructor(model, name, onChoice) {
    Object.assign(this, { model, name, onChoice, translations: [], line: 0, rank: 0, attentionRequest: null });
    this.heading = node("h2", { id: `${name}-heading` }, model.name);
    this.sentences = node("fieldset", { className: "choices sentences", hidden: true });
    this.hypotheses = node("fieldset", { className: "choices hypotheses" });
    this.message = node("p", { className: "message", role: "alert", hidden: true });
    this.figure = node("figure", { hidden: true });
    this.figureMessage = node("p", { className: "note", hidden: true });
    this.body = node("div", { hidden: true }, this.sentences, this.hypotheses, this.figureMessage, this.figure);
    const facts = node("p", { className: "facts" }, factsOf(model));
    this.root = node("section", { className: "panel" }, node("header", {}, this.heading, facts), this.message, this.body);
    this.root.setAttribute("aria-labelledby", this.heading.id);
    this.attention = new AttentionFigure(this.figure, name, model);
  }

  close() {
    this.attentionRequest?.abort();
    this.attention.close();
    this.root.remove();
  }

  /** Asks the server for the translations of lines. Raises ServerError, which is shown here as well. */
  async translate(lines, { prefix, nBest }, signal) {
    this.attentionRequest?.abort();
    this.root.setAttribute("aria-busy", "true");
    this.message.hidden = true;
    const body = { model: this.model.name, text: lines, n_best: Math.min(nBest, this.model.max_n_best) };
    if (prefix) body.prefix = lines.map(() => prefix);
    if (this.model.target_language) body.target_language = this.model.target_language;
    try {
      const answer = await postTranslate(body, signal);
      this.translations = answer.translations;
      Object.assign(this, { line: 0, rank: 0 });
      this.body.hidden = false;
      this.fill();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      this.body.hidden = true;
      this.message.replaceChildren(error.busy ? `The server is busy: ${error.message}` : error.message);
      this.message.hidden = false;
      throw error;
    } finally {
      if (!signal.aborted) this.root.removeAttribute("aria-busy");
    }
  }

  get chosen() {
    return this.translations[this.line]?.hypotheses[this.rank];
  }

  /** Shows a sentence and one of its translations. */
  choose(line, rank) {
    if (!this.translations[line]) return;
    const sameLine = line === this.line;
    Object.assign(this, { line, rank: Math.min(rank, this.translations[line].hypotheses.length - 1) });
    check(this.sentences, line);
    if (sameLine) check(this.hypotheses, this.rank); // the nodes stay, and so does the focus
    else this.fillHypotheses();
    this.loadAttention();
  }

  fill() {
    this.sentences.hidden = this.translations.length < 2;
    this.sentences.replaceChildren(
      node("legend", {}, "Sentences"),
      ...this.translations.map(({ hypotheses }, line) => {
        const text = hypotheses[0]?.text ?? "";
        return this.choice("line", line === this.line, text, count(line + 1), () => this.onChoice(line, 0));
      }),
    );
    this.fillHypotheses();
    this.loadAttention();
  }

  fillHypotheses() {
    const { hypotheses } = this.translations[this.line];
    this.hypotheses.replaceChildren(
      node("legend", {}, hypotheses.length > 1 ? "Translations, best first" : "Translation"),
      ...hypotheses.map(({ text, score: value }, rank) =>
        this.choice("rank", rank === this.rank, text, score(value), () => this.onChoice(this.line, rank)),
      ),
    );
  }

  /** A radio button; a text and what stands beside it. */
  choice(kind, checked, text, beside, onChange) {
    const radio = node("input", { type: "radio", name: `${this.name}-${kind}`, checked });
    radio.addEventListener("change", onChange);
    const shown = node("span", { className: "text", dir: "auto", lang: languageTag(this.model.target) }, text || "\u2014");
    return node("label", {}, radio, shown, node("span", { className: "score" }, beside));
  }

  /** Marks in the chosen translation the words that `other` lacks; null marks nothing. */
  mark(other) {
    if (!this.chosen) return;
    this.hypotheses.querySelectorAll(".text").forEach((shown, rank) => {
      shown.replaceChildren(this.translations[this.line].hypotheses[rank].text || "\u2014");
    });
    const shown = this.hypotheses.querySelectorAll(".text")[this.rank];
    if (other === null) return;
    const parts = differences(this.chosen.text, other, this.model.target);
    shown.replaceChildren(...parts.map(([text, differs]) => (differs ? node("mark", {}, text) : text)));
  }

  async loadAttention() {
    this.attentionRequest?.abort();
    const request = (this.attentionRequest = new AbortController());
    const { source } = this.translations[this.line];
    this.figure.setAttribute("aria-busy", "true");
    const failed = (text) => {
      this.figure.hidden = true;
      this.figureMessage.replaceChildren(text);
      this.figureMessage.hidden = false;
    };
    if (!this.chosen?.text) return failed("The translation is empty: there is no attention to show.");
    try {
      const body = { model: this.model.name, source, target: this.chosen.text };
      if (this.model.target_language) body.target_language = this.model.target_language;
      const pair = await postAttention(body, request.signal);
      if (request.signal.aborted) return;
      this.figureMessage.hidden = true;
      this.figure.hidden = false;
      this.attention.show(pair);
      this.figure.removeAttribute("aria-busy");
    } catch (error) {
      if (error.name !== "AbortError") failed(`No attention: ${error.message}`);
    }
  }
}
