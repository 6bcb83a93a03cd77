"""Noise in the data of a run: changes of the texts of training pairs."""

import dataclasses
from random import Random
from typing import Any

import numpy as np

from t2t_flax.config import Config
from t2t_flax.data.batching.streams import Visits
from t2t_flax.data.hooks import DataHook, drawn_pairs
from t2t_flax.errors import UserError
from t2t_flax.extensions.noise.changes import CHANGES, PUT_IN, VERSION

_SEEN = 5_000
"""Pairs among which `describe` looks for examples."""


@dataclasses.dataclass(frozen=True)
class NoiseChange:
    """One of the changes; a `drawn_pairs.TextChange`. name: its key in config.noise."""

    name: str
    probability: float

    @property
    def key(self) -> Any:
        return [self.name, VERSION]

    def __call__(self, source: str, target: str, random: Random) -> tuple[str, str]:
        return CHANGES[self.name](source, target, random)


class NoiseHook(DataHook):
    def __init__(self, config: Config):
        self._config, keys = config, config.group("noise")
        self._changes = [NoiseChange(name, getattr(keys, name)) for name in CHANGES if getattr(keys, name)]

    def check_tokenizers(self, tokenizers):
        for change in self._changes:
            for side, tokenizer in (("source", tokenizers.source), ("target", tokenizers.target)):
                if tokenizer.changes(PUT_IN.get(change.name, "")):
                    raise UserError(
                        f"config.noise.{change.name} = {change.probability} puts signs into the text that the {side} tokenizer "
                        "cannot spell: it needs config.data.byte_fallback = true."
                    )

    def text_changes(self):
        return self._changes

    def explain(self):
        return [
            f"noise in a share of the pairs of each pass: {', '.join(f'{c.name} {c.probability:g}' for c in self._changes)}"
        ]

    def describe(self, corpus):
        """An example of each change among the first pairs."""
        draw, lines = drawn_pairs(self._config, corpus.train, corpus.tokenizers), []
        assert draw
        pairs = np.arange(min(corpus.train.num_pairs, _SEEN))
        keys = draw.keys(Visits(pairs, np.zeros_like(pairs)))
        for change, chosen in zip(draw.changes, draw.chosen(keys), strict=True):
            for pair in np.flatnonzero(chosen).tolist():
                _, *texts = draw.texts(pair)
                changed = change(*texts, Random(int(keys[pair])))
                if [*changed] != texts:
                    lines.append(f"noise.{change.key[0]}: {' | '.join(changed)}")
                    break
        return lines


def hook(config: Config) -> NoiseHook:
    return NoiseHook(config)
