"""Training-pair filters that a config enables."""

from collections.abc import Sequence

from t2t_flax.config import Config
from t2t_flax.data.hooks import DataHook
from t2t_flax.errors import require
from t2t_flax.extensions.corpora import Filters
from t2t_flax.extensions.corpora.duplicates import Duplicates
from t2t_flax.extensions.corpora.language_filter import OtherLanguages
from t2t_flax.extensions.corpora.rules import Copies, LengthRatio, Rule
from t2t_flax.extensions.corpora.scorer import Scorer
from t2t_flax.extensions.shared.directions import directions_of


class FiltersHook(DataHook):
    def __init__(self, config: Config):
        self._config, self._keys = config, config.group("filters")

    def filters(self) -> Sequence[Rule]:
        """Return the enabled filters, slow ones last.

        Each sees the pairs that the filters before it have left.
        """
        keys: Filters = self._keys
        names = self._config.data.train_sources
        languages = tuple(
            direction for name in names for direction in directions_of(self._config, [name])
        )
        found = [
            (Duplicates(), keys.duplicates),
            (LengthRatio(keys.length_ratio), keys.length_ratio),
            (Copies(), keys.copies),
            (self._held_out(languages), keys.held_out),
            (OtherLanguages(languages, keys.language), keys.language),
            (Scorer(keys.scorer, keys.score), keys.scorer),
        ]
        return [rule for rule, applies in found if rule and applies]

    def _held_out(self, languages: tuple[tuple[str, str], ...]) -> Rule | None:
        if not self._keys.held_out:
            return None
        require("regex", "filters", "config.filters.held_out")
        from t2t_flax.extensions.corpora.held_out import HeldOut

        return HeldOut(self._keys.held_out, self._config, languages)

    def describe(self, store):
        return [f"dropped, too: {', '.join(rule.rule for rule in self.filters())}"]
