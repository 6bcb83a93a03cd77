"""Draws segmentations of a text at random."""

import abc
import bisect
import heapq
import itertools
import math
import re
from random import Random
from typing import ClassVar, NamedTuple

from t2t_flax.data.tokenizers import SentencePieceTokenizer, Tokenizer
from t2t_flax.errors import UserError

_CACHED_LENGTH = 20
"""What is known of texts of at most this many characters is kept: words, not sentences without spaces."""
_CACHED = 100_000
"""Words, or states of them, of which it is kept at a time."""

Ids = tuple[int, ...]


class Sampler(abc.ABC):
    """Draws segmentations with the pieces of a SentencePiece model. SentencePiece samples too, but its draws cannot be repeated
    in another process.
    """

    KEY: ClassVar[str]
    """The key of config.subwords that holds the strength."""
    MODEL: ClassVar[str]
    """The model type of SentencePiece, in lower case."""

    def __init__(self, tokenizer: Tokenizer, strength: float):
        """Raises UserError if it is another tokenizer, or a model of another type."""
        if not isinstance(tokenizer, SentencePieceTokenizer):
            raise UserError(
                f"config.subwords.{self.KEY} needs a SentencePiece model, not a {type(tokenizer).__name__}."
            )
        from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

        proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.data)
        trainer = proto.trainer_spec
        kind = type(trainer).ModelType.Name(trainer.model_type).lower()
        if kind != self.MODEL:
            raise UserError(
                f"config.subwords.{self.KEY} needs a SentencePiece model of type {self.MODEL}: this one is of type {kind}."
            )
        self.strength = strength
        kinds = proto.SentencePiece

        def ids(*types: int) -> dict[str, int]:
            found = [i for i, p in enumerate(proto.pieces) if p.type in types]
            return {proto.pieces[i].piece: ours for i, ours in zip(found, tokenizer.renumbered(found), strict=True)}

        self._normalize = SentencePieceProcessor(model_proto=tokenizer.data).normalize
        self._ids = {piece: (i,) for piece, i in ids(kinds.NORMAL, kinds.USER_DEFINED).items()}
        self._scores = {p.piece: p.score for p in proto.pieces if p.type == kinds.NORMAL}
        self._bytes = ids(kinds.BYTE)
        (self._unknown,) = ids(kinds.UNKNOWN).values()
        whole = sorted((p.piece for p in proto.pieces if p.type == kinds.USER_DEFINED), key=len, reverse=True)
        self._whole = frozenset(whole)
        # User-defined pieces are never divided.
        stop = "|".join(map(re.escape, whole)) or "(?!)"
        # Without pieces that go on over the mark of a word's beginning, words are independent.
        word = f"▁(?:(?!{stop})[^▁])*|(?:(?!{stop})[^▁])+" if whole else "▁[^▁]*|[^▁]+"
        crossing = any("▁" in piece[1:] for piece in self._scores)
        self._parts = re.compile(f"{stop}|(?:(?!{stop})[\\s\\S])+" if crossing else f"{stop}|{word}" if whole else word)

    def encode(self, text: str, random: Random) -> list[int]:
        """Ids of the tokenizer, without EOS."""
        ids: list[int] = []
        for part in self._parts.findall(self._normalize(text)):
            of_part = self._ids[part] if part in self._whole else self._draw(part, random)
            if of_part[:1] == (self._unknown,) == tuple(ids[-1:]):  # SentencePiece joins unknown characters
                of_part = of_part[1:]
            ids += of_part
        return ids

    @abc.abstractmethod
    def _draw(self, part: str, random: Random) -> Ids:
        """Ids of a part of a normalized text: a word, or what lies between user-defined pieces."""

    def _ids_of(self, pieces: list[str]) -> Ids:
        ids: list[int] = []
        for piece in pieces:
            if piece in self._ids:
                ids += self._ids[piece]
            elif self._bytes:
                ids += [self._bytes[f"<0x{byte:02X}>"] for byte in piece.encode()]
            elif ids[-1:] != [self._unknown]:
                ids.append(self._unknown)
        return tuple(ids)


class _Merged:
    """Pieces of a word while it is merged. ids: of these pieces; merges: where a pair can be merged, the best first; path: this
    state and those that follow if always the best merge is made.
    """

    __slots__ = ("ids", "merges", "path", "pieces")

    def __init__(self, pieces: tuple[str, ...], ids: Ids, merges: list[int]):
        self.pieces, self.ids, self.merges = pieces, ids, merges
        self.path: list[_Merged] | None = None

    def merged(self, number: int) -> tuple[str, ...]:
        """The pieces after one of the merges."""
        pieces, at = self.pieces, self.merges[number]
        return (*pieces[:at], pieces[at] + pieces[at + 1], *pieces[at + 2 :])


class BpeDropout(Sampler):
    """BPE-dropout (Provilkov et al. 2020) with the merges of a SentencePiece BPE model: the pair of the best score is merged, of
    equal ones the first, until none is left; each time every possible merge is skipped with probability `strength`. With 0 the
    ids are those of SentencePiece.

    Only the skipped merges before the one that is made matter, so that one draw says how many merges follow without a skipped
    one, and one how many are skipped then. The states of words are kept.
    """

    KEY, MODEL = "bpe_dropout", "bpe"

    def __init__(self, tokenizer, strength):
        super().__init__(tokenizer, strength)
        self._states: dict[str | tuple[str, ...], _Merged] = {}
        self._log_kept = math.log1p(-strength) if strength else 0.0
        self._log_skipped = math.log(strength) if strength else -math.inf

    def _draw(self, part, random):
        if len(part) > _CACHED_LENGTH:
            return self._ids_of(self._divide(part, random))
        state = self._states.get(part)
        if state is None:
            state = self._states[part] = self._state(tuple(part))
        draw = random.random
        while True:
            path = state.path or self._path(state)
            last = len(path) - 1
            if not last:
                return state.ids
            log_kept = self._log_kept
            merges = int(math.log(1.0 - draw()) / log_kept) if log_kept else last
            if merges >= last:
                return path[last].ids
            state = path[merges]
            skipped = 1 + int(math.log(1.0 - draw()) / self._log_skipped)
            if skipped >= len(state.merges):
                return state.ids
            state = self._state(state.merged(skipped))

    def _state(self, pieces: tuple[str, ...]) -> _Merged:
        state = self._states.get(pieces)
        if state is None:
            if len(self._states) > _CACHED:
                self._states.clear()
            found = []
            for i in range(len(pieces) - 1):
                score = self._scores.get(pieces[i] + pieces[i + 1])
                if score is not None:
                    found.append((-score, i))
            merges = [i for _, i in sorted(found)]
            state = self._states[pieces] = _Merged(pieces, self._ids_of(list(pieces)), merges)
        return state

    def _path(self, state: _Merged) -> list[_Merged]:
        path = [state]
        while path[-1].merges:
            path.append(self._state(path[-1].merged(0)))
        for i, one in enumerate(path):
            one.path = path[i:]
        return path

    def _divide(self, part: str, random: Random) -> list[str]:
        """The pieces of a long text."""
        pieces: list[str] = list(part)
        after, before = list(range(1, len(part) + 1)), list(range(-1, len(part) - 1))
        heap: list[tuple[float, int, str]] = []

        def push(left: int) -> None:
            if left >= 0 and after[left] < len(pieces):
                merged = pieces[left] + pieces[after[left]]
                if (score := self._scores.get(merged)) is not None:
                    heapq.heappush(heap, (-score, left, merged))

        for left in range(len(pieces)):
            push(left)
        skipped: list[tuple[float, int, str]] = []
        while heap:
            merge = heapq.heappop(heap)
            _, left, merged = merge
            right = after[left]
            if not pieces[left] or right >= len(pieces) or pieces[left] + pieces[right] != merged:
                continue  # one of them was merged with another meanwhile
            if self.strength and random.random() < self.strength:
                skipped.append(merge)
                continue
            pieces[left], pieces[right], after[left] = merged, "", after[right]
            if after[left] < len(pieces):
                before[after[left]] = left
            for one in skipped:
                heapq.heappush(heap, one)
            skipped = []
            push(before[left])
            push(left)
        return [piece for piece in pieces if piece]


class _Ways(NamedTuple):
    """The last pieces with which the segmentations of a text may end. starts: where they begin, in characters; cumulative:
    cumulative probabilities, the last one 1.
    """

    starts: list[int]
    cumulative: list[float]


class _Listed(NamedTuple):
    """All segmentations of a word, and their cumulative probabilities."""

    ids: list[Ids]
    cumulative: list[float]


class UnigramSampling(Sampler):
    """Segmentations of a unigram model (Kudo 2018, section 3.2, with all of them as candidates): x is drawn with probability
    proportional to P(x)^strength, by filtering forward and sampling backward. P(x) is the product of the probabilities of its
    pieces; an unknown character counts as in SentencePiece. Of words with few segmentations all are listed.
    """

    KEY, MODEL = "unigram_alpha", "unigram"
    _UNKNOWN_PENALTY = 10.0
    """An unknown character has the lowest score less this (kUnkPenalty of SentencePiece)."""
    _LISTED = 256

    def __init__(self, tokenizer, strength):
        super().__init__(tokenizer, strength)
        self._longest = max(map(len, self._scores), default=1)
        self._unknown_score = min(self._scores.values(), default=0.0) - self._UNKNOWN_PENALTY
        self._words: dict[str, _Listed | list[_Ways]] = {}

    def _draw(self, part, random):
        word = self._words.get(part)
        if word is None:
            word = self.lattice(part)
            if len(part) <= _CACHED_LENGTH:
                word = self._listed(part, word) or word
                if len(self._words) > _CACHED:
                    self._words.clear()
                self._words[part] = word
        if isinstance(word, _Listed):
            return word.ids[bisect.bisect_right(word.cumulative, random.random()) if len(word.ids) > 1 else 0]
        pieces, end = [], len(part)
        while end:
            ways = word[end]
            draw = random.random() if len(ways.starts) > 1 else 0.0
            start = ways.starts[bisect.bisect_right(ways.cumulative, draw)]
            pieces.append(part[start:end])
            end = start
        return self._ids_of(pieces[::-1])

    def lattice(self, part: str) -> list[_Ways]:
        """For each end 0 .. len(part), the ways in which the segmentations of the text before it may end."""
        totals, lattice = [0.0], [_Ways([], [])]
        for end in range(1, len(part) + 1):
            starts, weights = [], []
            for start in range(max(0, end - self._longest), end):
                score = self._scores.get(part[start:end])
                if score is None and start == end - 1:
                    score = self._unknown_score
                if score is not None:
                    starts.append(start)
                    weights.append(totals[start] + self.strength * score)
            highest = max(weights)
            sums = list(itertools.accumulate(math.exp(weight - highest) for weight in weights))
            totals.append(highest + math.log(sums[-1]))
            lattice.append(_Ways(starts, [x / sums[-1] for x in sums]))
        return lattice

    def _listed(self, part: str, lattice: list[_Ways]) -> _Listed | None:
        """All segmentations; None if there are many."""
        counts = [1]
        for ways in lattice[1:]:
            counts.append(sum(counts[start] for start in ways.starts))
        if counts[-1] > self._LISTED:
            return None

        def endings(end: int) -> list[tuple[list[str], float]]:
            if not end:
                return [([], 1.0)]
            ways = lattice[end]
            shares = [high - low for low, high in zip([0.0, *ways.cumulative], ways.cumulative, strict=False)]
            return [
                ([*pieces, part[start:end]], probability * share)
                for start, share in zip(ways.starts, shares, strict=True)
                for pieces, probability in endings(start)
            ]

        found = endings(len(part))
        cumulative = list(itertools.accumulate(probability for _, probability in found))
        return _Listed([self._ids_of(pieces) for pieces, _ in found], [x / cumulative[-1] for x in cumulative])


SAMPLERS: dict[str, type[Sampler]] = {sampler.KEY: sampler for sampler in (BpeDropout, UnigramSampling)}
