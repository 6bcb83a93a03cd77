"""Languages in a run's data: their symbols before source sentences."""

from t2t_flax.config import Config
from t2t_flax.config.data_keys import VALID_PREFIX
from t2t_flax.data.hooks import DataHook
from t2t_flax.errors import UserError
from t2t_flax.extensions.languages import parse_directions, symbols_of
from t2t_flax.extensions.shared.tagged_source import TaggedSource


class LanguagesHook(DataHook):
    def __init__(self, config: Config):
        self._train = list(config.data.train_sources)
        self._directions = parse_directions(config)
        self._trained = list(
            dict.fromkeys(self._directions[name] for name in self._train if self._directions)
        )
        self._source_symbol = config.group("languages").source_symbol
        symbols = {s for one in self._trained for s in symbols_of(one, self._source_symbol)}
        self._symbols = dict.fromkeys(sorted(symbols), "languages.directions")

    def config_of_set(self, config, name):
        if direction := self._of(name):
            return config.with_values(
                {f"data.{side}_language": code for side, code in direction._asdict().items()}
            )
        return config

    def transform(self, split, name, source):
        return (
            TaggedSource(source, " ".join(symbols_of(direction, self._source_symbol)))
            if (direction := self._of(name))
            else source
        )

    def stream(self, make, tokenizers):
        if tokenizers.source.source_languages and not self._source_symbol:
            raise UserError(
                "config.languages.source_symbol = false, but the tokenizer has symbols of source"
                " languages, such as"
                f" <from:{min(tokenizers.source.source_languages)}>: set it to true."
            )
        return make

    def symbols(self):
        return self._symbols

    def describe(self, store):
        if store is None:
            lines = [
                f"directions: {', '.join(map(str, self._trained))}",
                f"symbols of the languages: {' '.join(self._symbols)}",
            ]
            return [*(lines if self._trained else ()), *self._zero_shot()]
        if not self._directions:
            return []
        counts = dict.fromkeys(self._trained, 0)
        for name, count in zip(self._train, store.pairs_of_sources, strict=True):
            counts[self._directions[name]] += count
        pairs = ", ".join(f"{direction} {count:,} pairs" for direction, count in counts.items())
        return [f"directions: {pairs}", *self._zero_shot()]

    def record(self, name):
        if not (direction := self._of(name)):
            return {}
        return {
            "direction": str(direction),
            "zero_shot": bool(self._trained) and direction not in self._trained,
        }

    def _of(self, name: str):
        """Return the direction of a source or set."""
        return self._directions.get(name.removeprefix(VALID_PREFIX))

    def _zero_shot(self) -> list[str]:
        """Return a line on the directions of held-out sets without training text."""
        others = dict.fromkeys(
            direction for direction in self._directions.values() if direction not in self._trained
        )
        return [f"zero-shot, no training text: {', '.join(map(str, others))}"] if others else []
