"""The filters of training pairs that a config sets."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from t2t_flax.config import Config
from t2t_flax.data.hooks import DataHook, directions_of
from t2t_flax.data.preprocess import PairFilter
from t2t_flax.extensions.corpora import Filters
from t2t_flax.extensions.corpora.duplicates import Duplicates
from t2t_flax.extensions.corpora.language_filter import LanguageFilter, OtherLanguages


@dataclasses.dataclass(frozen=True)
class LengthRatio(PairFilter):
    """Drops pairs of which one side has more than `most` times the tokens of the other."""

    reason: ClassVar[str] = "length_ratio"
    shown: ClassVar[str] = "of unlike lengths"
    needs_tokens: ClassVar[bool] = True
    most: float

    def as_stored(self):
        return {"max_length_ratio": self.most}

    def drops(self, pairs):
        lengths = (sorted((len(pair.source_ids), len(pair.target_ids))) for pair in pairs)
        return [longer > self.most * shorter for shorter, longer in lengths]


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
