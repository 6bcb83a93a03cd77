"""The filter of pairs in another language. Languages are identified by py3langid, whose model comes with the package."""

import dataclasses
import functools
import importlib.metadata
import re
from typing import Any, ClassVar

from t2t_flax.errors import UserError, install_hint
from t2t_flax.extensions.corpora.rules import Rule

_NO_LANGUAGE = "zxx"
"""What py3langid calls numbers, markup and the like."""


@dataclasses.dataclass(frozen=True)
class LanguageFilter:
    """Finds pairs with a side in another language than its own.

    languages: (source, target) codes; of "pt-BR" the part before the hyphen counts. confidence: a side is in another language
    if P(the most probable language) / (P(the most probable language) + P(its own language)) is at least this. Text without a
    letter or with too little to tell has no language, and is accepted.
    """

    languages: tuple[str, str]
    confidence: float

    def accepts(self, source: str, target: str) -> bool:
        """Whether neither side is in another language."""
        return not any(map(self._is_foreign, (source, target), map(_base, self.languages)))

    def as_stored(self) -> dict[str, Any]:
        """As part of a store's recipe: with the version of py3langid, whose model decides. Raises UserError if it is not
        installed or does not know a language.
        """
        labels = set(_identifier().labels) - {_NO_LANGUAGE}
        for side, language in zip(("source", "target"), self.languages, strict=True):
            if _base(language) not in labels:
                raise UserError(
                    f"config.filters.language cannot identify the {side} language {language}: py3langid knows "
                    f"{', '.join(sorted(labels))}. Set config.filters.language = 0 for no filter."
                )
        return dataclasses.asdict(self) | {"py3langid": importlib.metadata.version("py3langid")}

    def _is_foreign(self, text: str, language: str) -> bool:
        if not any(map(str.isalpha, text)):
            return False
        ranked = _identifier().rank(text)
        best, probability = ranked[0]
        if best in (language, _NO_LANGUAGE):
            return False
        own = dict(ranked)[language]
        return probability >= self.confidence * (probability + own)


def _base(language: str) -> str:
    return re.split("[-_]", language.lower())[0]


@functools.cache
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise UserError(f"config.filters.language needs py3langid: {install_hint('langid')}.") from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@dataclasses.dataclass(frozen=True)
class OtherLanguages(Rule):
    """Drops pairs with a side in another language. filters: of each part of the source."""

    reason: ClassVar[str] = "language"
    shown: ClassVar[str] = "in another language"
    filters: tuple[LanguageFilter, ...]

    def as_stored(self):
        return {"language_filters": [of_part.as_stored() for of_part in self.filters]}

    @property
    def rule(self):
        return f"pairs in another language (probability {self.filters[0].confidence:g})"

    def accepts(self, pair):
        return self.filters[pair.part].accepts(pair.source, pair.target)
