"""Filter of pairs in another language.

py3langid, whose model comes with the package, identifies languages.
"""

import dataclasses
import functools
import importlib.metadata
from typing import Any, ClassVar

from t2t_flax.errors import UserError, install_hint
from t2t_flax.extensions.corpora.rules import Rule
from t2t_flax.language import Language

_NO_LANGUAGE = "zxx"
"""py3langid's label of numbers and markup."""


@dataclasses.dataclass(frozen=True)
class OtherLanguages(Rule):
    """Drop pairs with a side in another language than its own.

    Text without a letter or too short to identify has no language and is kept.

    Args:
        languages: (source, target) codes of each part.
        confidence: minimum P(the most probable language) / (P(the most probable language) + P(own
            language)) for a side to count as another language.
    """

    reason: ClassVar[str] = "language"
    shown: ClassVar[str] = "in another language"
    languages: tuple[tuple[str, str], ...]
    confidence: float

    def as_stored(self):
        """Return the recipe of each part with the version of py3langid.

        Its model decides.

        Raises:
            UserError: py3langid is not installed or does not know a language.
        """
        for side, language in (
            each for pair in self.languages for each in zip(("source", "target"), pair, strict=True)
        ):
            if not _labels_of(language):
                raise UserError(
                    f"config.filters.language cannot identify the {side} language {language}:"
                    f" py3langid knows {', '.join(sorted(_labels()))}. Set config.filters.language"
                    " = 0 for no filter."
                )
        common = {
            "confidence": self.confidence,
            "py3langid": importlib.metadata.version("py3langid"),
        }
        return {"language_filters": [{"languages": pair} | common for pair in self.languages]}

    @property
    def rule(self):
        return f"pairs in another language (probability {self.confidence:g})"

    def accepts(self, pair):
        sides = zip((pair.source, pair.target), self.languages[pair.part], strict=True)
        return not any(self._is_foreign(text, _labels_of(code)) for text, code in sides)

    def _is_foreign(self, text: str, own: frozenset[str]) -> bool:
        if not any(map(str.isalpha, text)):
            return False
        ranked = _identifier().rank(text)
        best, probability = ranked[0]
        if best in own or best == _NO_LANGUAGE:
            return False
        return probability >= self.confidence * (
            probability + sum(p for label, p in ranked if label in own)
        )


@functools.cache
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise UserError(
            f"config.filters.language needs py3langid: {install_hint('langid')}."
        ) from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@functools.cache
def _labels() -> frozenset[str]:
    return frozenset(_identifier().labels) - {_NO_LANGUAGE}


@functools.cache
def _labels_of(code: str) -> frozenset[str]:
    """Return the labels of a language and of its group.

    Examples are Nynorsk for "no", Cantonese for "zh".
    """
    language = Language.read(code)
    label = language.spelling(_labels())
    in_group = {label for label in _labels() if Language.read(label).group == language.base}
    return frozenset(in_group | {label} if label else in_group)
