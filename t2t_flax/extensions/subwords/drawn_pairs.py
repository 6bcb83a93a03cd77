"""Training pairs whose segmentation is drawn anew in each epoch."""

import dataclasses
import functools
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from t2t_flax.config import Data
from t2t_flax.config.data_keys import EOS
from t2t_flax.data.batching.layouts import PairReader
from t2t_flax.data.batching.windows import Samples
from t2t_flax.data.hashing import key_of, mix
from t2t_flax.data.stored_ids import Sentences, positions
from t2t_flax.data.tokenizers import Tokenizer, TokenizerPair, split_symbols
from t2t_flax.extensions.subwords.samplers import SAMPLERS, Sampler


@functools.lru_cache(2)
def sampler(kind: str, tokenizer: Tokenizer, strength: float) -> Sampler:
    """Return the sampler of a key of config.subwords.

    Both sides of a joint vocabulary share one.
    """
    return SAMPLERS[kind](tokenizer, strength)


@dataclasses.dataclass(frozen=True)
class DrawnPairs(PairReader):
    """Reader that draws the ids of pairs of a store that keeps its texts.

    A pair that gets too long keeps the ids of the store.

    Args:
        kind: a key of config.subwords.
        strength: its value.
    """

    tokenizers: TokenizerPair
    config: Data
    seed: int
    kind: str
    strength: float

    @property
    def draws(self) -> bool:
        return True

    @property
    def key(self) -> list[Any]:
        return [self.seed, self.most, self.kind, self.strength]

    @property
    def most(self) -> int:
        """Maximum tokens of a side of a drawn pair, EOS included."""
        c = self.config
        return min(
            c.max_length, c.batch_tokens, *([c.pack_length] if c.batching == "packed" else [])
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest possible side."""
        return max(self.store.longest, self.most)

    def read(self, samples: Samples) -> tuple[Sentences, Sentences]:
        """Return the source and the target sentences of samples, in their order.

        They are a function of each pair and its epoch.
        """
        keys = _keys_of(key_of(self.seed, 9), samples.epochs, samples.pairs)
        # Pairs of maximum length were perhaps truncated, and drawing takes time with the square of
        # a word.
        stored = self.store.sentences(samples.pairs)
        drawn = np.flatnonzero(np.maximum(*(side.lengths for side in stored)) < self.most)
        kept: list[int] = []
        ids: tuple[list[int], list[int]] = [], []
        lengths: tuple[list[int], list[int]] = [], []
        for i, pair, key in zip(
            drawn.tolist(), samples.pairs[drawn].tolist(), keys[drawn].tolist(), strict=True
        ):
            sentences = self._draw(pair, Random(key))
            if max(map(len, sentences)) < self.most and all(sentences):
                kept.append(i)
                for side, side_lengths, sentence, eos in zip(
                    ids, lengths, sentences, (self.config.source_eos, True), strict=True
                ):
                    side += sentence
                    if eos:
                        side.append(EOS)
                    side_lengths.append(len(sentence) + eos)
        at = np.array(kept, np.int64)
        source, target = (
            _replaced(own, at, np.array(x, own.ids.dtype), np.array(n, own.lengths.dtype))
            for own, x, n in zip(stored, ids, lengths, strict=True)
        )
        return source, target

    def _draw(self, pair: int, random: Random) -> tuple[list[int], list[int]]:
        """Return the ids of both sides of a pair, without EOS."""
        head, source, target = self._texts(pair)
        encode_source, encode_target = self._encoders
        symbols, plain = self.tokenizers.source.split(head) if head else ([], "")
        return [*symbols, *encode_source(plain + source, random)], encode_target(target, random)

    def _texts(self, pair: int) -> tuple[str, str, str]:
        """Return (tag and control symbols of the source, rest of it, target) of a pair."""
        source, target = self.store.texts(pair)
        tag = self._tags[int(np.searchsorted(self._ends, pair, side="right"))] if self._tags else ""
        rest = source.removeprefix(f"{tag} ") if tag else source
        if symbols := self.tokenizers.source.control_symbols:
            rest = split_symbols(rest, symbols)[1]
        return source[: len(source) - len(rest)], rest, target

    @functools.cached_property
    def _tags(self) -> list[str]:
        return self.store.meta["recipe"].get("tags", [])

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum(self.store.pairs_of_sources)

    @functools.cached_property
    def _encoders(self) -> list[Callable[[str, Random], list[int]]]:
        sides = self.tokenizers.source, self.tokenizers.target
        return [sampler(self.kind, side, self.strength).encode for side in sides]

    def __getstate__(self):
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


def _keys_of(key: int, *parts: np.ndarray) -> np.ndarray:
    """Return a key for each row of `parts` under `key`, uint64 [n].

    Args:
        *parts: integers [n]; the order of the parts matters.
    """
    keys = np.full(parts[0].shape, key, np.uint64)
    for part in parts:
        keys = mix(keys ^ part.astype(np.uint64))
    return keys


def _replaced(own: Sentences, at: np.ndarray, ids: np.ndarray, lengths: np.ndarray) -> Sentences:
    """Return the sentences with new ids and lengths at `at`.

    Args:
        ids: new ids, one sentence after another.
        lengths: their lengths.
    """
    all_lengths = own.lengths.copy()
    all_lengths[at] = lengths
    offsets = np.cumsum(all_lengths, dtype=np.int64) - all_lengths
    rest = np.delete(np.arange(len(all_lengths)), at)
    out = np.empty(int(all_lengths.sum(dtype=np.int64)), own.ids.dtype)
    out[positions(offsets[at], lengths)] = ids
    out[positions(offsets[rest], all_lengths[rest])] = own.ids.take(
        positions(own.offsets[rest], all_lengths[rest])
    )
    return Sentences(out, offsets, all_lengths)
