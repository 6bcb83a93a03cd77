"""Filter of training pairs that occur in the validation or test sets."""

import dataclasses
import functools
import unicodedata
from typing import ClassVar

import regex

from t2t_flax.config import Config
from t2t_flax.data.sources import one_line, sha256_of
from t2t_flax.extensions.corpora.rules import Rule
from t2t_flax.extensions.shared.directions import directions_of

_NOT_COMPARED = regex.compile(r"[^\p{L}\p{M}\p{N}]+")
_VARIATION_SELECTORS = regex.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]+")
"""Variation selectors of emoji and ideographs; they are \\p{M}, too."""
_COMPARED = regex.compile(r"[\p{L}\p{N}]")


@dataclasses.dataclass(frozen=True)
class HeldOut(Rule):
    """Drop pairs that occur in data.valid or data.test.

    Texts of one language are compared without case, punctuation and spaces, in Unicode's form NFKC,
    so pairs in the other direction are found, too. A text of punctuation and spaces alone is not
    compared.

    Args:
        languages: (source, target) of each training source.
    """

    reason: ClassVar[str] = "held_out"
    shown: ClassVar[str] = "in the validation or test sets"
    side: str
    config: Config
    languages: tuple[tuple[str, str], ...]

    @property
    def rule(self):
        what = {"pair": "both sides", "either": "a side"}.get(self.side, f"the {self.side}")
        return f"pairs with {what} in the validation or test sets"

    def as_stored(self):
        texts = sha256_of(*map(ascii, sorted(self._texts)))
        unicode = [regex.__version__, unicodedata.unidata_version]
        return {
            "held_out": self.side,
            "held_out_texts": texts,
            "held_out_languages": [list(pair) for pair in self.languages],
            "held_out_unicode": unicode,
        }

    def accepts(self, pair):
        side = "pair" if self.side == "pair" else "either"
        return self._texts.isdisjoint(
            _keys((pair.source, pair.target), self.languages[pair.part], side)
        )

    @functools.cached_property
    def _texts(self) -> frozenset[str]:
        """Keys of the held-out texts."""
        from t2t_flax.data.splits import split_source
        from t2t_flax.tasks import task_of

        found: set[str] = set()
        for name in (*self.config.data.valid_sets, *self.config.data.test_sets):
            (languages,) = directions_of(self.config, [name])
            source = split_source(task_of(self.config), name)
            for row in source.read():
                text, references = ("", ()) if isinstance(row, str) else (row[0], row[1:])
                for reference in references:
                    sides = source.without_tag(one_line(text)), one_line(reference)
                    found.update(_keys(sides, languages, self.side))
        return frozenset(found)


def _keys(texts: tuple[str, str], languages: tuple[str, str], side: str) -> list[str]:
    """Return the compared texts, with their languages: one, each, or both in one."""
    keys = [_key(text, language) for text, language in zip(texts, languages, strict=True)]
    if side == "pair":
        return ["\n".join(sorted(keys))] if all(keys) else []
    chosen = {"source": keys[:1], "target": keys[1:], "either": keys}[side]
    return [key for key in chosen if key]


def _key(text: str, language: str) -> str:
    """Return the compared form of a text.

    It is empty for a text without letters and digits.
    """
    bare = _NOT_COMPARED.sub("", unicodedata.normalize("NFKC", text).casefold())
    if not bare.isalnum():  # only marks may be left
        bare = _VARIATION_SELECTORS.sub("", bare)
        bare = bare if _COMPARED.search(bare) else ""
    return f"{language} {bare}" if bare else ""
