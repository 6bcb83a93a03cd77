"""Subword regularisation in the data of a run: further stores of the training pairs, each in another segmentation, which epochs
take turns to read.
"""

import dataclasses
import functools
import random
from collections.abc import Sequence

import numpy as np

from t2t_flax.config import Config, Data
from t2t_flax.data.batching.layouts import MakeStream, MakeWindows, Stream, Update, common_sizes
from t2t_flax.data.hashing import key_of
from t2t_flax.data.hooks import DataHook
from t2t_flax.data.preprocess import Encode
from t2t_flax.data.token_store import TokenStore
from t2t_flax.data.tokenizers import SentencePieceTokenizer, Tokenizer
from t2t_flax.errors import UserError
from t2t_flax.extensions.subwords import TOKENIZER_OF_KIND, Subwords
from t2t_flax.extensions.subwords.samplers import SAMPLERS, Sampler

_NAMES = {"bpe_dropout": "BPE-dropout", "unigram_alpha": "unigram sampling, alpha"}


@dataclasses.dataclass(frozen=True)
class Segmentation:
    """One of the segmentations of a corpus, a function of its number. key: of config.subwords, in `SAMPLERS`; strength: its
    value. seed, number: which one.
    """

    key: str
    strength: float
    seed: int
    number: int

    def __str__(self):
        return f"segmentation {self.number}"

    def as_stored(self) -> dict[str, float]:
        """As part of a store's recipe."""
        return {SAMPLERS[self.key].STORED: self.strength, "seed": self.seed, "number": self.number}

    def encoders(self, sides: Sequence[Tokenizer], chunk: int, max_length: int) -> Sequence[Encode]:
        """See `data.preprocess.Segmentation`. Sentences that are too long as they are keep their one segmentation: drawing
        takes time with their square.
        """
        generator = random.Random(key_of(self.seed, 9, self.number, chunk))

        def encode(tokenizer: Tokenizer, text: str) -> list[int]:
            ids = tokenizer.encode_text(text)
            return ids if len(ids) >= max_length else self.draw(tokenizer, text, generator)

        def encode_source(text: str) -> list[int]:
            symbols, rest = sides[0].split(text)
            return [*symbols, *encode(sides[0], rest)]

        return [encode_source, functools.partial(encode, sides[1])]

    def draw(self, tokenizer: Tokenizer, text: str, generator: random.Random) -> list[int]:
        """Ids of one of the text's segmentations, without EOS. Raises UserError if the tokenizer has one only."""
        if not isinstance(tokenizer, SentencePieceTokenizer):
            raise UserError(
                f"config.subwords.{self.key} needs a SentencePiece model, not a {type(tokenizer).__name__}."
            )
        ids = _sampler(self.key, tokenizer.data).encode(text, self.strength, generator)
        return tokenizer.renumbered(ids)


@functools.lru_cache(8)
def _sampler(key: str, model: bytes) -> Sampler:
    return SAMPLERS[key](model)


class Turns:
    """A `Stream` of several, each of which has one epoch at a time, and after the last the first again."""

    def __init__(self, streams: Sequence[Stream]):
        self._streams = streams
        self.sizes = common_sizes([stream.sizes for stream in streams])
        self.updates_per_epoch = streams[0].updates_per_epoch
        self._ends = np.cumsum([stream.updates_per_epoch for stream in streams])

    def update(self, k: int) -> Update:
        rounds, offset = divmod(k, int(self._ends[-1]))
        number = int(np.searchsorted(self._ends, offset, side="right"))
        stream = self._streams[number]
        offset -= int(self._ends[number]) - stream.updates_per_epoch
        update = stream.update(rounds * stream.updates_per_epoch + offset)
        return update._replace(epoch=rounds * len(self._streams) + number)


def take_turns(make: MakeStream) -> MakeStream:
    """Of the stores, each a stream of `make`."""

    def make_turns(
        stores: Sequence[TokenStore], data: Data, seed: int, windows_of: MakeWindows | None = None
    ) -> Stream:
        seeds = [key_of(seed, 8, number) if number else seed for number in range(len(stores))]
        return Turns([make([store], data, of_store, windows_of) for store, of_store in zip(stores, seeds, strict=True)])

    return make_turns


class SubwordsHook(DataHook):
    def __init__(self, config: Config):
        keys: Subwords = config.group("subwords")
        self._key = next(name for name in TOKENIZER_OF_KIND if getattr(keys, name))
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
