// Text as the page shows it: DOM nodes, pieces of tokens, numbers, names of languages, differing words.

/** A DOM node; children that are strings become text nodes, so markup in them stays text. */
export function node(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name in made && !["list", "role"].includes(name)) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const SPACE = "\u2581"; // SentencePiece writes a space so
const NAMES = { "</s>": "end", "<start>": "start", "<unk>": "unknown", "<pad>": "padding" };

/** Groups pieces into words: [[{index, text, special}, …], …]; special pieces are words of their own. */
export function words(pieces) {
  const marked = pieces.some((piece) => piece.startsWith(SPACE));
  const grouped = [];
  pieces.forEach((piece, index) => {
    const special = Object.hasOwn(NAMES, piece);
    const text = special ? NAMES[piece] : piece.replaceAll(SPACE, " ").trim() || "\u2423";
    const begins = !marked || special || piece.startsWith(SPACE) || grouped.length === 0 || grouped.at(-1)[0].special;
    if (begins) grouped.push([]);
    grouped.at(-1).push({ index, text, special });
  });
  return grouped;
}

/** A piece as it is spoken and written in a sentence. */
export function spoken(piece) {
  return Object.hasOwn(NAMES, piece) ? `(${NAMES[piece]})` : piece.replaceAll(SPACE, " ").trim() || "(space)";
}

const COUNT = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export const count = (number) => COUNT.format(number);

/** 0.42 -> "42 %", with a narrow space; below one half "<1 %". */
export function percent(weight) {
  return weight > 0 && weight < 0.005 ? "<1\u202f%" : `${Math.round(100 * weight)}\u202f%`;
}

/** A score with a minus sign of a digit's width. */
export const score = (number) => number.toFixed(3).replace("-", "\u2212");

export function millions(number) {
  if (number < 1e6) return count(number);
  return number < 1e9 ? `${SHORT.format(number / 1e6)}\u202fM` : `${SHORT.format(number / 1e9)}\u202fG`;
}

/** "de" -> "German"; a name that is no language code stays as it is. */
export function language(code) {
  if (code === "mul") return "Several languages"; // ISO 639-2, of a model with a choice
  try {
    return new Intl.DisplayNames(["en"], { type: "language", fallback: "code" }).of(code);
  } catch {
    return code;
  }
}

/** The code if the browser can use it as `lang`. */
export function languageTag(code) {
  try {
    return Intl.getCanonicalLocales(code)[0];
  } catch {
    return undefined;
  }
}

function segments(text, code) {
  if (!Intl.Segmenter) return text.match(/\s+|\S+/gu) ?? [];
  return [...new Intl.Segmenter(languageTag(code), { granularity: "word" }).segment(text)].map((part) => part.segment);
}

/** [[text, differs], …] of `own`: the words outside a longest common subsequence with `other`. */
export function differences(own, other, code) {
  const a = segments(own, code);
  const b = segments(other, code);
  const lengths = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      lengths[i][j] = a[i] === b[j] ? 1 + lengths[i + 1][j + 1] : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const parts = [];
  for (let i = 0, j = 0; i < a.length; ) {
    if (j < b.length && a[i] === b[j]) {
      parts.push([a[i], false]);
      i++;
      j++;
    } else if (j < b.length && lengths[i][j + 1] >= lengths[i + 1][j]) {
      j++;
    } else {
      parts.push([a[i], a[i].trim() !== ""]);
      i++;
    }
  }
  return parts;
}
