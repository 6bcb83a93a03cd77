"""Samplers of segmentations of a text."""

import abc
import bisect
import heapq
import itertools
import math
import operator
import re
import sys
from collections.abc import Iterable
from random import Random
from typing import Any, ClassVar, NamedTuple

from t2t_flax.data.tokenizers import SentencePieceTokenizer, Tokenizer
from t2t_flax.errors import UserError

_KEPT_LENGTH = 20
"""Longest text in characters whose states are kept.

Words fit, sentences without spaces do not.
"""
_KEPT = 100_000
"""Words, or states of words, that are kept."""

Ids = tuple[int, ...]


class Sampler(abc.ABC):
    """Sampler of segmentations with the pieces of a SentencePiece model.

    SentencePiece samples too, but its draws cannot be repeated in another process.
    """

    KEY: ClassVar[str]
    """Key of config.subwords that holds the strength."""
    MODEL: ClassVar[str]
    """Model type of SentencePiece, in lower case."""

    def __init__(self, tokenizer: Tokenizer, strength: float):
        """Raise UserError for another tokenizer or a model of another type."""
        if not isinstance(tokenizer, SentencePieceTokenizer):
            raise UserError(
                f"config.subwords.{self.KEY} needs a SentencePiece model, not a"
                f" {type(tokenizer).__name__}."
            )
        from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

        proto = sentencepiece_model_pb2.ModelProto.FromString(  # type: ignore[attr-defined]
            tokenizer.data
        )
        trainer = proto.trainer_spec
        kind = type(trainer).ModelType.Name(trainer.model_type).lower()
        if kind != self.MODEL:
            raise UserError(
                f"config.subwords.{self.KEY} needs a SentencePiece model of type {self.MODEL}: this"
                f" one is of type {kind}."
            )
        self.strength = strength
        kinds = proto.SentencePiece

        def ids(*types: int) -> dict[str, int]:
            found = [i for i, p in enumerate(proto.pieces) if p.type in types]
            return {
                proto.pieces[i].piece: ours
                for i, ours in zip(found, tokenizer.renumbered(found), strict=True)
            }

        self._normalize = SentencePieceProcessor(model_proto=tokenizer.data).normalize
        self._ids = {piece: (i,) for piece, i in ids(kinds.NORMAL, kinds.USER_DEFINED).items()}
        self._scores = {p.piece: p.score for p in proto.pieces if p.type == kinds.NORMAL}
        self._bytes = ids(kinds.BYTE)
        (self._unknown,) = ids(kinds.UNKNOWN).values()
        whole = sorted(
            (p.piece for p in proto.pieces if p.type == kinds.USER_DEFINED), key=len, reverse=True
        )
        self._whole = frozenset(whole)
        # User-defined pieces are never divided.
        stop = "|".join(map(re.escape, whole)) or "(?!)"
        # Without pieces that go on over the mark of a word's beginning, words are independent.
        word = f"▁(?:(?!{stop})[^▁])*|(?:(?!{stop})[^▁])+" if whole else "▁[^▁]*|[^▁]+"
        crossing = any("▁" in piece[1:] for piece in self._scores)
        self._parts = re.compile(
            f"{stop}|(?:(?!{stop})[\\s\\S])+" if crossing else f"{stop}|{word}" if whole else word
        )

    def encode(self, text: str, random: Random) -> list[int]:
        """Return ids of the tokenizer, without EOS."""
        parts = self._divide(self._parts.findall(self._normalize(text)), random)
        if self._bytes:
            return [*itertools.chain.from_iterable(parts)]
        ids: list[int] = []
        for part in parts:
            ids += part[1:] if part[:1] == (self._unknown,) == tuple(ids[-1:]) else part
        return ids

    @abc.abstractmethod
    def _divide(self, parts: list[str], random: Random) -> Iterable[Ids]:
        """Yield the ids of each part of a normalized text.

        A part is a user-defined piece, a word, or the text between user-defined pieces.
        """

    def _ids_of(self, pieces: Iterable[str]) -> Ids:
        ids: list[int] = []
        for piece in pieces:
            if piece in self._ids:
                ids += self._ids[piece]
            elif self._bytes:
                ids += [self._bytes[f"<0x{byte:02X}>"] for byte in piece.encode()]
            elif ids[-1:] != [self._unknown]:  # SentencePiece joins unknown characters
                ids.append(self._unknown)
        return tuple(ids)


class _Recent(dict):
    """Cache of the entries added or used last, between `_KEPT` and twice as many."""

    def __init__(self):
        super().__init__()
        self._older: dict[Any, Any] = {}

    def __missing__(self, key: Any) -> Any:
        """Return an entry that was not used for long; None if there is none."""
        if (value := self._older.pop(key, None)) is not None:
            self.add(key, value)
        return value

    def add(self, key: Any, value: Any) -> None:
        if len(self) >= _KEPT:
            self._older = self.copy()
            self.clear()
        self[key] = value


class _Merged:
    """Pieces of a word while it is merged, and their ids.

    Attributes:
        merges: places where a pair can be merged, the best first.
        path: this state and the states that follow if always the best merge is made.
        final: ids at the end of the path.
    """

    __slots__ = ("final", "ids", "last", "merges", "path", "pieces")

    def __init__(self, pieces: tuple[str, ...], ids: Ids, merges: list[int]):
        self.pieces, self.ids, self.merges = pieces, ids, merges
        self.path: list[_Merged] = []
        self.last = 0
        self.final: Ids = ()

    def merged(self, number: int) -> tuple[str, ...]:
        """Return the pieces after one of the merges."""
        pieces, at = self.pieces, self.merges[number]
        return (*pieces[:at], pieces[at] + pieces[at + 1], *pieces[at + 2 :])


class BpeDropout(Sampler):
    """BPE-dropout with the merges of a SentencePiece BPE model.

    See Provilkov et al. 2020. The pair of the best score is merged, the first of equal ones, until
    none is left. Each time every possible merge is skipped with probability `strength`. With 0 the
    ids equal SentencePiece's.

    Only the skipped merges before the one that is made matter. So one draw says how many merges
    follow, also in the next words, until the best one is skipped, and another how many are skipped
    then. The states of words that have occurred before are kept.
    """

    KEY, MODEL = "bpe_dropout", "bpe"

    def __init__(self, tokenizer, strength):
        super().__init__(tokenizer, strength)
        self._states = _Recent()
        self._log_kept = math.log1p(-strength) if strength else -0.0
        self._log_skipped = math.log(strength) if strength else -math.inf

    def _divide(self, parts, random):
        left, states = self._kept(random), self._states
        for part in parts:
            state = states[part]
            if state.__class__ is _Merged:
                if left >= state.last:
                    left -= state.last
                    yield state.final
                else:
                    ids, left = self._walk(state, left, random)
                    yield ids
            elif part in self._whole:
                yield self._ids[part]
            elif state:  # second occurrence
                states.add(part, self._state(tuple(part)))
                ids, left = self._walk(states[part], left, random)
                yield ids
            else:
                if len(part) <= _KEPT_LENGTH:
                    states.add(part, True)
                ids, left = self._merge(part, left, random)
                yield ids

    def _kept(self, random: Random) -> int:
        """Return how many merges follow before the best one is skipped."""
        return (
            int(math.log(1.0 - random.random()) / self._log_kept) if self._log_kept else sys.maxsize
        )

    def _skipped(self, random: Random) -> int:
        """Return how many merges are skipped, after the best one has been."""
        return 1 + int(math.log(1.0 - random.random()) / self._log_skipped)

    def _walk(self, state: _Merged, left: int, random: Random) -> tuple[Ids, int]:
        """Return (ids, merges that follow in the next word) of a word with kept states."""
        while left < state.last:
            state = state.path[left]
            skipped, left = self._skipped(random), self._kept(random)
            if skipped >= len(state.merges):
                return state.ids, left
            state = self._state(state.merged(skipped))
        return state.final, left - state.last

    def _state(self, pieces: tuple[str, ...]) -> _Merged:
        """Return the state with all states of its path."""
        path: list[_Merged] = []
        while (state := self._states[pieces]) is None:
            scores = map(self._scores.get, map(operator.add, pieces, pieces[1:]))
            merges = sorted((-score, i) for i, score in enumerate(scores) if score is not None)
            state = _Merged(pieces, self._ids_of(pieces), [i for _, i in merges])
            self._states.add(pieces, state)
            path.append(state)
            if not merges:
                state.final = state.ids
                break
            pieces = state.merged(0)
        rest = [] if path and path[-1] is state else [state, *state.path[1:]]
        for i, one in enumerate(path):
            one.path = [*path[i:], *rest]
            one.last, one.final = len(one.path) - 1, state.final
        return path[0] if path else state

    def _merge(self, part: str, left: int, random: Random) -> tuple[Ids, int]:
        """Return the result of `_walk` for any text."""
        pieces: list[str] = list(part)
        after, before = list(range(1, len(part) + 1)), list(range(-1, len(part) - 1))
        heap: list[tuple[float, int, str]] = []

        def push(at: int) -> None:
            if at >= 0 and after[at] < len(pieces):
                merged = pieces[at] + pieces[after[at]]
                if (score := self._scores.get(merged)) is not None:
                    heapq.heappush(heap, (-score, at, merged))

        def best() -> tuple[float, int, str] | None:
            while heap:
                _, at, merged = merge = heapq.heappop(heap)
                # Otherwise, one of the two was merged with another piece meanwhile.
                if (
                    pieces[at]
                    and after[at] < len(pieces)
                    and pieces[at] + pieces[after[at]] == merged
                ):
                    return merge
            return None

        for at in range(len(pieces)):
            push(at)
        while merge := best():
            if left:
                left -= 1
            else:
                skipped, left = [merge], 0
                count = self._skipped(random)
                left = self._kept(random)
                while len(skipped) <= count and (merge := best()):
                    skipped.append(merge)
                if not merge:
                    break
                for one in skipped[:-1]:
                    heapq.heappush(heap, one)
            _, at, merged = merge
            pieces[at], pieces[after[at]], after[at] = merged, "", after[after[at]]
            if after[at] < len(pieces):
                before[after[at]] = at
            push(before[at])
            push(at)
        return self._ids_of(filter(None, pieces)), left


class Ways(NamedTuple):
    """Last pieces with which the segmentations of a text may end.

    Args:
        starts: where they begin, in characters.
        cumulative: cumulative probabilities, the last one 1.
        ids: ids of each.
    """

    starts: list[int]
    cumulative: list[float]
    ids: list[Ids]


class UnigramSampling(Sampler):
    """Sampler of segmentations of a unigram model (Kudo 2018, section 3.2).

    All segmentations are candidates: x is drawn with probability proportional to P(x)^strength, by
    filtering forward and sampling backward. P(x) is the product of the probabilities of its pieces;
    an unknown character counts as in SentencePiece. The lattices of words are kept.
    """

    KEY, MODEL = "unigram_alpha", "unigram"
    _UNKNOWN_PENALTY = 10.0
    """Distance of an unknown character's score below the lowest one.

    kUnkPenalty of SentencePiece.
    """

    def __init__(self, tokenizer, strength):
        super().__init__(tokenizer, strength)
        self._longest = max(map(len, self._scores), default=1)
        self._unknown_score = min(self._scores.values(), default=0.0) - self._UNKNOWN_PENALTY
        self._lattices = _Recent()

    def _divide(self, parts, random):
        draw, bisect_right, lattices = random.random, bisect.bisect_right, self._lattices
        for part in parts:
            lattice = lattices[part]
            if lattice is None:
                if part in self._whole:
                    yield self._ids[part]
                    continue
                lattice = self.lattice(part)
                if len(part) <= _KEPT_LENGTH:
                    lattices.add(part, lattice)
            pieces, end = [], len(part)
            while end:
                starts, cumulative, ids = lattice[end]
                way = bisect_right(cumulative, draw()) if len(starts) > 1 else 0
                pieces.append(ids[way])
                end = starts[way]
            yield from reversed(pieces)

    def lattice(self, part: str) -> list[Ways]:
        """Return the ways to end the segmentations of each prefix of a text.

        The prefixes end at 0 .. len(part).
        """
        totals, lattice = [0.0], [Ways([], [], [])]
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
            ids = [self._ids_of([part[start:end]]) for start in starts]
            lattice.append(Ways(starts, [x / sums[-1] for x in sums], ids))
        return lattice


SAMPLERS: dict[str, type[Sampler]] = {
    sampler.KEY: sampler for sampler in (BpeDropout, UnigramSampling)
}
