"""Filters of training pairs: duplicates, sides of unlike lengths, other languages. Languages are identified by py3langid, whose
model comes with the package.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from t2t_flax.config import Config
from t2t_flax.data.hooks import DataHook, directions_of
from t2t_flax.data.preprocess import Pair, PairFilter, Unread
from t2t_flax.data.sources import Source
from t2t_flax.errors import UserError, install_hint
from t2t_flax.extensions.corpora import Filters

_NO_LANGUAGE = "zxx"
"""What py3langid calls numbers, markup and the like."""


@dataclasses.dataclass(frozen=True)
class LengthRatio(PairFilter):
    """Drops pairs of which one side has more than `most` times the tokens of the other."""

    reason: ClassVar[str] = "length_ratio"
    shown: ClassVar[str] = "of unlike lengths"
    most: float

    def as_stored(self):
        return {"max_length_ratio": self.most}

    def drops(self, pair: Pair):
        shorter, longer = sorted((len(pair.source_ids), len(pair.target_ids)))
        return longer > self.most * shorter


@dataclasses.dataclass(frozen=True)
class Duplicates(PairFilter):
    """Drops pairs that occurred before, in any part, on both sides equal character by character; tags apart. The same pair in
    two directions, as names often are, is no duplicate.
    """

    reason: ClassVar[str] = "duplicate"
    shown: ClassVar[str] = "duplicates"

    def as_stored(self):
        return {"drop_duplicates": True}

    def in_order(self, parts, pairs):
        seen: set[bytes] = set()
        return [self._marked(part, of_part, seen) for part, of_part in zip(parts, pairs, strict=True)]

    def _marked(self, part: Source, pairs: Iterator[Unread], seen: set[bytes]) -> Iterator[Unread]:
        """Digests of the pairs are added to `seen`: about 120 bytes of memory a pair."""
        language = [word for word in part.tag.split() if word.startswith("<2")]  # to write
        for pair in pairs:
            if isinstance(pair, str):
                yield pair
                continue
            text = json.dumps([part.without_tag(pair[0]), pair[1], *language])
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            yield self.reason if digest in seen else pair
            seen.add(digest)


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
class OtherLanguages(PairFilter):
    """Drops pairs with a side in another language. filters: of each part of the source."""

    reason: ClassVar[str] = "language"
    shown: ClassVar[str] = "in another language"
    filters: tuple[LanguageFilter, ...]

    def as_stored(self):
        return {"language_filters": [of_part.as_stored() for of_part in self.filters]}

    def drops(self, pair: Pair):
        return not self.filters[pair.part].accepts(pair.source, pair.target)


class FiltersHook(DataHook):
    def __init__(self, config: Config):
        self._config, self._keys = config, config.group("filters")

    def filters(self) -> Sequence[PairFilter]:
        keys: Filters = self._keys
        found: list[PairFilter] = [LengthRatio(keys.length_ratio)] if keys.length_ratio else []
        if keys.duplicates:
            found.append(Duplicates())
        if keys.language:
            names = self._config.data.train_sources
            pairs = [direction for name in names for direction in directions_of(self._config, [name])]
            found.append(OtherLanguages(tuple(LanguageFilter(pair, keys.language) for pair in pairs)))
        return found

    def explain(self):
        keys = self._keys
        rules = {
            f"pairs with {keys.length_ratio:g} times as many tokens on one side": keys.length_ratio,
            "duplicates": keys.duplicates,
            f"pairs in another language (probability {keys.language:g})": keys.language,
        }
        return [f"dropped, too: {', '.join(rule for rule, applies in rules.items() if applies)}"]


def hook(config: Config) -> FiltersHook:
    return FiltersHook(config)
