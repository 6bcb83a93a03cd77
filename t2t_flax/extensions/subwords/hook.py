"""Subword regularisation in the data of a run: the ids of the training pairs are drawn anew in each pass."""

import dataclasses
import functools

from t2t_flax.config import Config
from t2t_flax.data.hooks import DataHook
from t2t_flax.data.tokenizers import Tokenizer
from t2t_flax.extensions.subwords import TOKENIZER_OF_KIND, Subwords
from t2t_flax.extensions.subwords.samplers import SAMPLERS, Sampler

_NAMES = {"bpe_dropout": "BPE-dropout", "unigram_alpha": "unigram sampling, alpha"}


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


class SubwordsHook(DataHook):
    def __init__(self, config: Config):
        keys: Subwords = config.group("subwords")
        kind = next(name for name in TOKENIZER_OF_KIND if getattr(keys, name))
        self._drawn = DrawnSubwords(kind, getattr(keys, kind))

    def check_tokenizers(self, tokenizers):
        for tokenizer in (tokenizers.source, tokenizers.target):
            self._drawn.encoder(tokenizer)

    def segmentation(self):
        return self._drawn

    def explain(self):
        kind, strength = self._drawn.key
        return [f"{_NAMES[kind]} {strength:g}: each pass draws another segmentation of every pair"]


def hook(config: Config) -> SubwordsHook:
    return SubwordsHook(config)
