"""Languages in the data of a run."""

from t2t_flax.config import Config
from t2t_flax.config.data_keys import VALID_PREFIX
from t2t_flax.data.hooks import DataHook, trained_directions
from t2t_flax.data.starts import start_symbol
from t2t_flax.extensions.languages import parse_directions


class LanguagesHook(DataHook):
    def __init__(self, config: Config):
        self._config, self._directions = config, parse_directions(config)

    def direction(self, name):
        return self._directions.get(name.removeprefix(VALID_PREFIX))

    def explain(self):
        trained = trained_directions(self._config)
        targets = sorted({direction.target for direction in trained})
        lines = [
            f"directions: {', '.join(map(str, trained))}",
            f"tokens of the target languages: {' '.join(map(start_symbol, targets))}",
        ]
        return [*(lines if trained else ()), *self._zero_shot()]

    def describe(self, corpus):
        if not self._directions:
            return []
        counts = dict.fromkeys(trained_directions(self._config), 0)
        names = self._config.data.train_sources
        for name, count in zip(names, corpus.train.pairs_of_sources, strict=True):
            counts[self._directions[name]] += count
        pairs = ", ".join(f"{direction} {count:,} pairs" for direction, count in counts.items())
        return [f"directions: {pairs}", *self._zero_shot()]

    def _zero_shot(self) -> list[str]:
        """A line on the directions of validation and test sets for which there is no training text."""
        trained = trained_directions(self._config)
        others = dict.fromkeys(direction for direction in self._directions.values() if direction not in trained)
        return [f"zero-shot, no training text: {', '.join(map(str, others))}"] if others else []

    def record(self, name, starts):
        if not (direction := self.direction(name)):
            return {}
        return {"direction": str(direction), "zero_shot": bool(starts.ids) and direction not in starts.directions}


def hook(config: Config) -> LanguagesHook:
    return LanguagesHook(config)
