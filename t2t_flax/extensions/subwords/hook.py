"""Segmentations of the training pairs that are drawn anew in each pass."""

from t2t_flax.config import Config, Data
from t2t_flax.data.batching.layouts import PairReader
from t2t_flax.data.batching.updates import Stream
from t2t_flax.data.batching.windows import Windows
from t2t_flax.data.hooks import DataHook
from t2t_flax.extensions.subwords import TOKENIZER_OF_KIND
from t2t_flax.extensions.subwords.drawn_pairs import DrawnPairs, sampler

_NAMES = {"bpe_dropout": "BPE-dropout", "unigram_alpha": "unigram sampling, alpha"}


class SubwordsHook(DataHook):
    reads_texts = True

    def __init__(self, config: Config):
        keys = config.group("subwords")
        self._config = config
        self._kind = next(name for name in TOKENIZER_OF_KIND if getattr(keys, name))
        self._strength = getattr(keys, self._kind)

    def stream(self, make, tokenizers):
        for tokenizer in (tokenizers.source, tokenizers.target):
            sampler(self._kind, tokenizer, self._strength)
        own, seed, how = self._config.data, self._config.seed.data, (self._kind, self._strength)

        def make_drawn(
            reader: PairReader, data: Data, stream_seed: int, windows: Windows | None
        ) -> Stream:
            drawn = DrawnPairs(reader.store, tokenizers, own, seed, *how)
            return make(drawn, data, stream_seed, windows)

        return make_drawn

    def describe(self, store):
        return [
            f"{_NAMES[self._kind]} {self._strength:g}: each pass draws another segmentation of"
            " every pair"
        ]
