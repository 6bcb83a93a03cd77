"""Augmentation in the data of a run: the texts of training pairs are changed, or their ids drawn, anew in each pass."""

import dataclasses
import functools
from random import Random
from typing import Any

import numpy as np

from t2t_flax.config import Config
from t2t_flax.data.batching.streams import Visits
from t2t_flax.data.hooks import DataHook
from t2t_flax.data.tokenizers import Tokenizer
from t2t_flax.errors import UserError
from t2t_flax.extensions.augmentation import TEXT_CHANGES, TOKENIZER_OF_KIND
from t2t_flax.extensions.augmentation.changes import CHANGES, PUT_IN, VERSION
from t2t_flax.extensions.augmentation.drawn_pairs import DrawnPairs
from t2t_flax.extensions.augmentation.samplers import SAMPLERS, Sampler

_NAMES = {"bpe_dropout": "BPE-dropout", "unigram_alpha": "unigram sampling, alpha"}
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


@dataclasses.dataclass(frozen=True)
class DrawnSubwords:
    """Draws segmentations; a `drawn_pairs.Segmentation`. kind: a key of config.subwords, in `SAMPLERS`; strength: its value."""

    kind: str
    strength: float

    @property
    def key(self) -> tuple[str, float]:
        return self.kind, self.strength

    def encoder(self, tokenizer: Tokenizer):
        return sampler(self.kind, tokenizer, self.strength).encode


@functools.lru_cache(2)
def sampler(kind: str, tokenizer: Tokenizer, strength: float) -> Sampler:
    """With a joint vocabulary, one for both sides."""
    return SAMPLERS[kind](tokenizer, strength)


class AugmentationHook(DataHook):
    draws = True

    def __init__(self, config: Config):
        self._config, noise, subwords = config, config.group("noise"), config.group("subwords")
        self._changes = [NoiseChange(name, getattr(noise, name)) for name in CHANGES if getattr(noise, name)]
        self._others = [change for module in TEXT_CHANGES.of(config) for change in module.text_changes(config)]
        kinds = [DrawnSubwords(name, getattr(subwords, name)) for name in TOKENIZER_OF_KIND if getattr(subwords, name)]
        self._segmentation = kinds[0] if kinds else None

    def check_tokenizers(self, tokenizers):
        for side, tokenizer in (("source", tokenizers.source), ("target", tokenizers.target)):
            if self._segmentation:
                self._segmentation.encoder(tokenizer)
            for change in self._changes:
                if tokenizer.changes(PUT_IN.get(change.name, "")):
                    raise UserError(
                        f"config.noise.{change.name} = {change.probability} puts signs into the text that the {side} tokenizer "
                        "cannot spell: it needs config.data.byte_fallback = true."
                    )

    def draw(self, store, tokenizers):
        data, seed = self._config.data, self._config.seed.data
        return DrawnPairs(store, tokenizers, data, seed, (*self._changes, *self._others), self._segmentation)

    def explain(self):
        lines = []
        if self._segmentation:
            kind, strength = self._segmentation.key
            lines.append(f"{_NAMES[kind]} {strength:g}: each pass draws another segmentation of every pair")
        if self._changes:
            shares = ", ".join(f"{change.name} {change.probability:g}" for change in self._changes)
            lines.append(f"noise in a share of the pairs of each pass: {shares}")
        return lines

    def describe(self, corpus):
        """An example of each change of noise among the first pairs."""
        draw, lines = self.draw(corpus.train, corpus.tokenizers), []
        pairs = np.arange(min(corpus.train.num_pairs, _SEEN))
        keys = draw.keys(Visits(pairs, np.zeros_like(pairs)))
        for change, chosen in zip(self._changes, draw.chosen(keys), strict=False):
            for pair in np.flatnonzero(chosen).tolist():
                _, *texts = draw.texts(pair)
                changed = change(*texts, Random(int(keys[pair])))
                if [*changed] != texts:
                    lines.append(f"noise.{change.name}: {' | '.join(changed)}")
                    break
        return lines


def hook(config: Config) -> AugmentationHook:
    return AugmentationHook(config)
