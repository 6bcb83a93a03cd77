"""Segmentations of the training pairs that are drawn anew in each pass."""

from t2t_flax.config import Config
from t2t_flax.data.hooks import DataHook
from t2t_flax.extensions.subwords import TOKENIZER_OF_KIND
from t2t_flax.extensions.subwords.drawn_pairs import DrawnPairs, sampler

_NAMES = {"bpe_dropout": "BPE-dropout", "unigram_alpha": "unigram sampling, alpha"}


class SubwordsHook(DataHook):
    draws = True

    def __init__(self, config: Config):
        keys = config.group("subwords")
        self._config = config
        self._kind = next(name for name in TOKENIZER_OF_KIND if getattr(keys, name))
        self._strength = getattr(keys, self._kind)

    def draw(self, store, tokenizers):
        for tokenizer in (tokenizers.source, tokenizers.target):
            sampler(self._kind, tokenizer, self._strength)
        config = self._config
        return store and DrawnPairs(
            store, tokenizers, config.data, config.seed.data, self._kind, self._strength
        )

    def describe(self, store):
        return [
            f"{_NAMES[self._kind]} {self._strength:g}: each pass draws another segmentation of"
            " every pair"
        ]
