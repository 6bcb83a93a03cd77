"""Sentences of a paragraph, found by sentencex, and joined translations.

Importing it without sentencex raises UserError.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from t2t_flax.errors import UserError, install_hint
from t2t_flax.language import Language

try:
    from sentencex import segment
except ImportError:
    raise UserError(
        f"splitting text into sentences needs sentencex: {install_hint('paragraphs')}."
    ) from None

_UNSPACED = ("zh", "ja")
"""Languages that put no space between sentences."""
_SPACE = re.compile(r"\s")
_WIDE_END = re.compile("[。！？｡][」』”’）]*$")


@dataclasses.dataclass(frozen=True)
class Sentences:
    """A paragraph as gaps[0] + sentences[0] + gaps[1] + ... + gaps[-1].

    Sentences begin and end with a letter or sign; gaps are spaces. A paragraph without text is one
    sentence, "", after one gap.
    """

    sentences: tuple[str, ...]
    gaps: tuple[str, ...]

    def join(self, translations: Sequence[str]) -> str:
        """Join translations with the gaps of the paragraph.

        An empty translation takes only the gaps at both ends.
        """
        text = self.gaps[0]
        written = False
        for translation, before in zip(translations, ("", *self.gaps[1:-1]), strict=True):
            if translation:
                text += (before if written else "") + translation
                written = True
        return text + self.gaps[-1]


def split(text: str, source_language: str = "", target_language: str = "") -> Sentences:
    """Split a text without newlines into sentences.

    A space is added between sentences of Chinese or Japanese that are translated into another
    language, and left out in the other direction.

    Args:
        source_language, target_language: codes; sentencex knows 300, and takes its general rules
            for others.
    """
    sentences, gaps, end = [], [""], 0
    # sentencex panics at some spaces of several bytes, such as the one of "plan B\u00a0."
    for plain in segment(Language.known(source_language).group, _SPACE.sub(" ", text)):
        part = text[end : (end := end + len(plain))]
        if not part.strip():
            gaps[-1] += part
            continue
        sentences.append(part.strip())
        gaps[-1] += part[: len(part) - len(part.lstrip())]
        gaps.append(part[len(part.rstrip()) :])
    if not sentences:
        return Sentences(("",), (text, ""))
    unspaced = Language.known(target_language).group in _UNSPACED
    for i in range(1, len(sentences)):
        if unspaced and gaps[i] == " ":
            gaps[i] = ""
        elif not unspaced and not gaps[i] and _WIDE_END.search(sentences[i - 1]):
            gaps[i] = " "
    return Sentences(tuple(sentences), tuple(gaps))


def sentences_of(
    model: Any, line: str, target_language: str | None = None, source_language: str = ""
) -> Sentences:
    """Split a line of a model's source text into sentences.

    If the line begins with symbols of languages, all its sentences get them.

    Args:
        target_language, source_language: given if the model has several.
    """
    tokenizer, data = model.tokenizers.source, model.config.data
    several = bool(tokenizer.target_languages)
    ids, text = tokenizer.split(line)
    symbol, line = line[: len(line) - len(text)], text
    into, own = (
        next((code for code, i in languages.items() if i in ids), "")
        for languages in (tokenizer.target_languages, tokenizer.source_languages)
    )
    target_language = target_language or into
    of_source = source_language or own or ("" if several else data.source_language)
    of_target = target_language or ("" if several else data.target_language)
    made = split(line, of_source, of_target)
    return dataclasses.replace(
        made, sentences=tuple(symbol + sentence for sentence in made.sentences)
    )
