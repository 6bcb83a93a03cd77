"""Training pairs of which the text, or its segmentation, is drawn anew in each pass through the corpus."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

import numpy as np

from t2t_flax.config import Data
from t2t_flax.config.data_keys import EOS
from t2t_flax.data.batching.streams import Visits
from t2t_flax.data.hashing import key_of, keys_of, mix
from t2t_flax.data.stored_ids import Sentences, positions
from t2t_flax.data.token_store import TokenStore
from t2t_flax.data.tokenizers import Tokenizer, TokenizerPair, split_symbols


class TextChange(Protocol):
    """Changes the texts of some pairs. Pickled, for processes without JAX. probability: with which a pair is changed in a pass.
    key: what the changes depend on, as JSON.
    """

    @property
    def probability(self) -> float: ...

    @property
    def key(self) -> Any: ...

    def __call__(self, source: str, target: str, random: Random) -> tuple[str, str]:
        """The texts in place of these; the source is without tags and control symbols."""


class Segmentation(Protocol):
    """Draws the ids of texts, in place of those of the tokenizer. Pickled. key: what they depend on, as JSON."""

    @property
    def key(self) -> Any: ...

    def encoder(self, tokenizer: Tokenizer) -> Callable[[str, Random], list[int]]:
        """A function that draws the ids of a text without control symbols, without EOS. Raises UserError if it needs another
        tokenizer.
        """


@dataclasses.dataclass(frozen=True)
class DrawnPairs:
    """Draws pairs of a store that keeps its texts: `changes`, each in turn, then `segmentation`; a `layouts.Draw`. A pair that
    gets too long keeps the ids of the store.
    """

    store: TokenStore
    tokenizers: TokenizerPair
    config: Data
    seed: int
    changes: tuple[TextChange, ...] = ()
    segmentation: Segmentation | None = None

    @property
    def key(self) -> list[Any]:
        """What the ids depend on beside the store, as JSON."""
        changes = [[one.probability, one.key] for one in self.changes]
        return [self.seed, self.most, changes, self.segmentation and self.segmentation.key]

    @property
    def most(self) -> int:
        """Tokens of a side that a drawn pair may have, EOS included."""
        c = self.config
        return min(c.max_length, c.batch_tokens, *([c.pack_length] if c.batching == "packed" else []))

    @property
    def longest(self) -> int:
        """Tokens of the longest side that there may be."""
        return max(self.store.longest, self.most)

    def __call__(self, visits: Visits) -> tuple[Sentences, Sentences]:
        """The source and the target sentences of visits, in their order: a function of each pair and its pass."""
        keys = self.keys(visits)
        chosen = self.chosen(keys)
        # Pairs that are as long as they may be were perhaps truncated, and drawing takes time with the square of a word.
        stored = self.store.sentences(visits.pairs)
        fits = np.maximum(*(side.lengths for side in stored)) < self.most
        drawn = np.flatnonzero(fits & (chosen.any(0) if self.segmentation is None else True))
        kept: list[int] = []
        ids: tuple[list[int], list[int]] = [], []
        lengths: tuple[list[int], list[int]] = [], []
        for i, pair, key, applies in zip(
            drawn.tolist(), visits.pairs[drawn].tolist(), keys[drawn].tolist(), chosen.T[drawn], strict=True
        ):
            sentences = self.draw(pair, Random(key), [c for c, one in zip(self.changes, applies, strict=True) if one])
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

    def keys(self, visits: Visits) -> np.ndarray:
        """uint64 [P]: of the draws of each visit."""
        return keys_of(key_of(self.seed, 9), visits.passes, visits.pairs)

    def chosen(self, keys: np.ndarray) -> np.ndarray:
        """bool [changes, P]: which of the changes apply to each pair, by its key."""
        draws = [mix(keys ^ np.uint64(key_of(number))) for number in range(len(self.changes))]
        rows = [draw < one.probability * 2.0**64 for one, draw in zip(self.changes, draws, strict=True)]
        return np.array(rows, bool).reshape(len(self.changes), len(keys))

    def draw(self, pair: int, random: Random, changes: Sequence[TextChange]) -> tuple[list[int], list[int]]:
        """The ids of both sides of a pair, without EOS."""
        head, source, target = self.texts(pair)
        for change in changes:
            source, target = change(source, target, random)
        encode_source, encode_target = self._encoders
        symbols, plain = self.tokenizers.source.split(head) if head else ([], "")
        return [*symbols, *encode_source(plain + source, random)], encode_target(target, random)

    def texts(self, pair: int) -> tuple[str, str, str]:
        """(tag and control symbols of the source, the rest of it, the target) of a pair."""
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
        if self.segmentation is not None:
            return [self.segmentation.encoder(side) for side in sides]
        return [lambda text, random, side=side: side.encode_text(text) for side in sides]  # type: ignore[misc]

    def __getstate__(self):
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


def _replaced(own: Sentences, at: np.ndarray, ids: np.ndarray, lengths: np.ndarray) -> Sentences:
    """The sentences, but at `at` those whose ids, one after another, and lengths these are."""
    all_lengths = own.lengths.copy()
    all_lengths[at] = lengths
    offsets = np.cumsum(all_lengths, dtype=np.int64) - all_lengths
    rest = np.delete(np.arange(len(all_lengths)), at)
    out = np.empty(int(all_lengths.sum(dtype=np.int64)), own.ids.dtype)
    out[positions(offsets[at], lengths)] = ids
    out[positions(offsets[rest], all_lengths[rest])] = own.ids.take(positions(own.offsets[rest], all_lengths[rest]))
    return Sentences(out, offsets, all_lengths)
