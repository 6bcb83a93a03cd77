"""Subword regularisation in the data of a run."""

from t2t_flax.config import Config
from t2t_flax.data.hooks import DataHook
from t2t_flax.extensions.subwords.keys import TOKENIZERS, Subwords
from t2t_flax.extensions.subwords.segmentation import Segmentation
from t2t_flax.extensions.subwords.turns import take_turns

_NAMES = {"bpe_dropout": "BPE-dropout", "unigram_alpha": "unigram sampling, alpha"}


class SubwordsHook(DataHook):
    def __init__(self, config: Config):
        keys: Subwords = config.group("subwords")
        self._key = next(name for name in TOKENIZERS if getattr(keys, name))
        self._strength, self._samples, self._seed = getattr(keys, self._key), keys.samples, config.seed.data

    def segmentations(self):
        return [Segmentation(self._key, self._strength, self._seed, number) for number in range(self._samples)]

    def make_stream(self, make):
        return take_turns(make)

    def explain(self):
        return [
            f"{_NAMES[self._key]} {self._strength:g}: epochs take turns through {self._samples} segmentations",
        ]

    def describe(self, corpus):
        """Segmentations of different lengths drop different pairs."""
        counts = sorted(store.num_pairs for store in (corpus.train, *corpus.further))
        return [f"{counts[0]:,} to {counts[-1]:,} pairs in the {len(counts)} segmentations"]


def hook(config: Config) -> SubwordsHook:
    return SubwordsHook(config)
