// The attention of one pair as a figure: two lines of pieces joined by their weights, and one small map for each head.

import { languageTag, node, percent, spoken, words } from "./text.js";

const KINDS = {
  cross: {
    label: "translation to source",
    rows: (pair) => pair.target_pieces,
    columns: (pair) => pair.source_pieces,
    caption: "Each piece of the translation looks at the source while it is predicted.",
  },
  encoder: {
    label: "source to itself",
    rows: (pair) => pair.source_pieces,
    columns: (pair) => pair.source_pieces,
    caption: "Each piece of the source looks at the whole source.",
  },
  decoder: {
    label: "translation to itself",
    rows: (pair) => pair.target_pieces,
    columns: (pair) => ["<start>", ...pair.target_pieces.slice(0, -1)],
    caption: "Each piece of the translation looks at the pieces before it while it is predicted.",
  },
};
const SHOWN = 0.005; // weights below half a per cent get no number and no line

/** [rows][columns]: the mean of [layers][heads][rows][columns] over layers and heads. */
function meanOf(weights) {
  const heads = weights.flat();
  return heads[0].map((row, r) => row.map((_, c) => heads.reduce((sum, head) => sum + head[r][c], 0) / heads.length));
}

export class AttentionFigure {
  /** `root` gets the figure; `name` makes names of its groups unique in the page; `codes` are {source, target}. */
  constructor(root, name, codes) {
    Object.assign(this, { root, name, codes, kind: "cross", head: null, focused: 0, hovered: null });
    this.select = node("select", { id: `${name}-kind` });
    for (const [kind, { label }] of Object.entries(KINDS)) this.select.append(new Option(label, kind));
    this.select.addEventListener("change", () => {
      Object.assign(this, { kind: this.select.value, head: null, focused: 0, hovered: null });
      this.build();
    });
    this.columns = node("p", { className: "pieces columns", dir: "auto" });
    this.rows = node("div", { className: "pieces rows", dir: "auto", role: "toolbar" });
    this.lines = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.lines.classList.add("lines");
    this.lines.setAttribute("aria-hidden", "true");
    this.alignment = node("div", { className: "alignment" }, this.lines, this.columns, this.rows);
    this.strongest = node("p", { className: "strongest", role: "status" });
    this.maps = node("fieldset", { className: "maps" });
    this.caption = node("figcaption");
    root.replaceChildren(
      node(
        "div",
        { className: "figure-head" },
        node("h3", {}, "Attention"),
        node("label", { htmlFor: this.select.id, className: "visually-hidden" }, "Attention from"),
        this.select,
      ),
      this.alignment,
      this.strongest,
      this.maps,
      this.caption,
    );
    this.listen();
  }

  listen() {
    const indexOf = (target) => target.closest?.("[data-row]")?.dataset.row;
    this.rows.addEventListener("pointerover", (event) => {
      const index = indexOf(event.target);
      if (index !== undefined) this.look({ hovered: Number(index) });
    });
    this.rows.addEventListener("pointerleave", () => this.look({ hovered: null }));
    this.rows.addEventListener("focusin", (event) => {
      this.look({ focused: Number(indexOf(event.target)), hovered: null });
    });
    this.rows.addEventListener("click", (event) => {
      const index = indexOf(event.target); // not every browser gives the focus to a button that is tapped
      if (index !== undefined) this.look({ focused: Number(index) });
    });
    this.rows.addEventListener("keydown", (event) => this.move(event));
    this.resized = new ResizeObserver(() => this.drawLines());
    this.resized.observe(this.alignment);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.repaint = () => this.paintMaps();
    this.scheme.addEventListener("change", this.repaint);
  }

  /** Ends what listens beyond the figure's own nodes. */
  close() {
    this.resized.disconnect();
    this.scheme.removeEventListener("change", this.repaint);
  }

  /** Shows the answer of /api/attention. */
  show(pair) {
    this.pair = pair;
    Object.assign(this, { focused: 0, hovered: null });
    this.build();
  }

  build() {
    const kind = KINDS[this.kind];
    this.weights = this.pair[this.kind];
    this.rowPieces = kind.rows(this.pair);
    this.columnPieces = kind.columns(this.pair);
    const known = this.head && this.weights[this.head[0]]?.[this.head[1]];
    if (!known) this.head = null;
    this.mean = meanOf(this.weights);
    this.columns.lang = languageTag(this.kind === "decoder" ? this.codes.target : this.codes.source) ?? "";
    this.rows.lang = languageTag(this.kind === "encoder" ? this.codes.source : this.codes.target) ?? "";
    this.rows.setAttribute("aria-label", `${this.kind === "encoder" ? "Source" : "Translation"}, piece by piece`);
    this.columnNodes = [];
    this.columns.replaceChildren(
      ...words(this.columnPieces).map((word) =>
        node("span", { className: "word" }, ...word.map((piece) => this.columnNode(piece))),
      ),
    );
    this.rowNodes = [];
    this.rows.replaceChildren(
      ...words(this.rowPieces).map((word) =>
        node("span", { className: "word" }, ...word.map((piece) => this.rowNode(piece))),
      ),
    );
    this.buildMaps();
    this.caption.replaceChildren(
      kind.caption,
      " Numbers are per cent of its attention. In the small maps, ",
      `1.2 is head 2 of layer 1: rows are pieces of the ${this.kind === "encoder" ? "source" : "translation"}, `,
      "columns what they look at. Choose a head to see it above.",
    );
    this.look({});
  }

  columnNode({ text, special, index }) {
    const number = node("small", { "aria-hidden": "true" });
    const made = node("span", { className: special ? "piece special" : "piece" }, node("bdi", {}, text), number);
    this.columnNodes[index] = made;
    return made;
  }

  rowNode({ text, special, index }) {
    const made = node("button", { type: "button", className: special ? "piece special" : "piece", tabIndex: -1 }, text);
    made.dataset.row = index;
    if (special) made.setAttribute("aria-label", spoken(this.rowPieces[index]));
    this.rowNodes[index] = made;
    return made;
  }

  buildMaps() {
    const group = `${this.name}-head`;
    const choice = (value, label) => {
      const radio = node("input", { type: "radio", name: group, checked: String(this.head ?? "mean") === value });
      radio.value = value;
      radio.setAttribute("aria-label", label);
      radio.addEventListener("change", () => {
        this.head = value === "mean" ? null : value.split(",").map(Number);
        this.look({});
      });
      return radio;
    };
    const square = (matrix, value, label, shown) => {
      const canvas = node("canvas", { width: this.columnPieces.length, height: this.rowPieces.length });
      canvas.matrix = matrix;
      const band = node("span", { className: "band" });
      const map = node("span", { className: "map", "aria-hidden": "true" }, canvas, band);
      return node("label", { className: "head" }, choice(value, label), map, node("span", { className: "number" }, shown));
    };
    const layers = this.weights.map((heads, l) => {
      const squares = heads.map((matrix, h) =>
        square(matrix, `${l},${h}`, `layer ${l + 1}, head ${h + 1}`, `${l + 1}.${h + 1}`),
      );
      return node("div", { className: "layer" }, ...squares);
    });
    const all = this.weights.length * this.weights[0].length;
    const mean = square(this.mean, "mean", `mean of all ${all} heads`, `mean of all ${all} heads`);
    this.maps.style.setProperty("--heads", this.weights[0].length);
    const shape = this.columnPieces.length / this.rowPieces.length;
    this.maps.style.setProperty("--shape", Math.min(Math.max(shape, 0.6), 1.7)); // of a map, wide to high
    this.maps.replaceChildren(
      node("legend", { className: "visually-hidden" }, "Head"),
      node("div", { className: "mean" }, mean),
      node("div", { className: "layers" }, ...layers),
    );
    this.paintMaps();
  }

  /** The weights that are shown: those of the chosen head, or the mean. */
  get matrix() {
    return this.head ? this.weights[this.head[0]][this.head[1]] : this.mean;
  }

  /** Moves to another piece, by hovering or focus, and shows what it looks at. */
  look(change) {
    Object.assign(this, change);
    if (!this.pair) return;
    this.shown = this.hovered ?? this.focused;
    const weights = this.matrix[this.shown];
    this.columnNodes.forEach((piece, column) => {
      piece.dataset.weight = weights[column];
      piece.style.setProperty("--weight", weights[column]);
      piece.lastChild.textContent = weights[column] < SHOWN ? "" : Math.round(100 * weights[column]);
    });
    this.rowNodes.forEach((piece, row) => {
      piece.tabIndex = row === this.focused ? 0 : -1;
      piece.setAttribute("aria-pressed", row === this.focused);
      piece.classList.toggle("shown", row === this.shown);
    });
    this.maps.style.setProperty("--row", this.shown / this.rowPieces.length);
    this.maps.style.setProperty("--row-height", 1 / this.rowPieces.length);
    this.describe(weights);
    this.drawLines();
  }

  describe(weights) {
    const order = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, 3);
    const parts = order.filter((column) => weights[column] >= SHOWN);
    const looked = parts.flatMap((column, i) => [
      i ? ", " : " ",
      node("i", {}, node("bdi", {}, spoken(this.columnPieces[column]))),
      ` ${percent(weights[column])}`,
    ]);
    const by = this.head ? `layer ${this.head[0] + 1}, head ${this.head[1] + 1}` : "mean of the heads";
    this.strongest.replaceChildren(
      node("strong", {}, node("bdi", {}, spoken(this.rowPieces[this.shown]))),
      " looks at:",
      ...looked,
      node("span", { className: "by" }, ` (${by})`),
    );
  }

  move(event) {
    const forward = getComputedStyle(this.rows).direction === "rtl" ? "ArrowLeft" : "ArrowRight";
    const backward = forward === "ArrowLeft" ? "ArrowRight" : "ArrowLeft";
    const last = this.rowPieces.length - 1;
    const to = {
      [forward]: Math.min(this.focused + 1, last),
      [backward]: Math.max(this.focused - 1, 0),
      Home: 0,
      End: last,
    }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.rowNodes[to].focus();
  }

  /** Lines from the shown piece to what it looks at, where both sentences fit on one line of the page. */
  drawLines() {
    this.lines.replaceChildren();
    if (!this.pair) return;
    const { classList } = this.alignment;
    const oneLine = (nodes) => nodes.every((piece) => Math.abs(piece.offsetTop - nodes[0].offsetTop) < 4);
    const fits = () => oneLine(this.columnNodes) && oneLine(this.rowNodes);
    classList.remove("tight");
    if (!fits()) classList.add("tight");
    classList.toggle("joined", fits());
    if (!classList.contains("joined")) {
      classList.remove("tight");
      return;
    }
    const frame = this.alignment.getBoundingClientRect();
    const middle = (box) => box.left + box.width / 2 - frame.left;
    const tops = this.columnNodes.map((piece) => piece.getBoundingClientRect());
    const bottoms = this.rowNodes.map((piece) => piece.getBoundingClientRect());
    this.lines.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
    const line = (row, column, shown) => {
      const weight = this.matrix[row][column];
      if (weight < (shown ? SHOWN : 0.1)) return;
      const [x1, y1] = [middle(bottoms[row]), bottoms[row].top - frame.top - 2];
      const [x2, y2] = [middle(tops[column]), tops[column].bottom - frame.top + 2];
      const half = (y1 + y2) / 2;
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", `M${x1} ${y1}C${x1} ${half} ${x2} ${half} ${x2} ${y2}`);
      path.setAttribute("stroke-width", (0.75 + 5 * weight).toFixed(2));
      path.setAttribute("stroke-opacity", (shown ? 0.25 + 0.75 * weight : 0.6 * weight).toFixed(3));
      path.setAttribute("class", shown ? "shown" : "");
      this.lines.append(path);
    };
    const each = (row, shown) => this.columnNodes.forEach((_, column) => line(row, column, shown));
    this.rowNodes.forEach((_, row) => row !== this.shown && each(row, false));
    each(this.shown, true);
  }

  /** Each map: one pixel for each weight, the ink's opacity is the weight. */
  paintMaps() {
    const ink = getComputedStyle(this.root).getPropertyValue("--heat").trim();
    for (const canvas of this.maps.querySelectorAll("canvas")) {
      const context = canvas.getContext("2d");
      context.clearRect(0, 0, canvas.width, canvas.height);
      context.fillStyle = ink;
      canvas.matrix.forEach((row, y) =>
        row.forEach((weight, x) => {
          context.globalAlpha = Math.min(1, weight);
          context.fillRect(x, y, 1, 1);
        }),
      );
    }
  }
}
