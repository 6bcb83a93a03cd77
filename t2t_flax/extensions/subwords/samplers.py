"""Draws segmentations of a text at random."""

import abc
import bisect
import dataclasses
import functools
import itertools
import math
import random
import re
from typing import ClassVar

from t2t_flax.errors import UserError


class Sampler(abc.ABC):
    """Draws segmentations with the pieces of a SentencePiece model. SentencePiece samples too, but its draws cannot be repeated
    in another process.
    """

    KEY: ClassVar[str]
    """The key of config.subwords that holds the strength."""
    STORED: ClassVar[str]
    """The name of the strength in a store's recipe."""
    MODEL: ClassVar[str]
    """The model type of SentencePiece, in lower case."""

    def __init__(self, model: bytes):
        """Raises UserError if it is a model of another type."""
        from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

        proto = sentencepiece_model_pb2.ModelProto.FromString(model)
        trainer = proto.trainer_spec
        kind = type(trainer).ModelType.Name(trainer.model_type).lower()
        if kind != self.MODEL:
            raise UserError(
                f"config.subwords.{self.KEY} needs a SentencePiece model of type {self.MODEL}: this one is of type {kind}."
            )
        kinds = proto.SentencePiece
        self._processor = SentencePieceProcessor(model_proto=model)
        self._ids = {p.piece: i for i, p in enumerate(proto.pieces) if p.type in (kinds.NORMAL, kinds.USER_DEFINED)}
        self._scores = {p.piece: p.score for p in proto.pieces if p.type == kinds.NORMAL}
        self._bytes = {p.piece: i for i, p in enumerate(proto.pieces) if p.type == kinds.BYTE}
        self._unknown = next(i for i, p in enumerate(proto.pieces) if p.type == kinds.UNKNOWN)
        whole = sorted((p.piece for p in proto.pieces if p.type == kinds.USER_DEFINED), key=len, reverse=True)
        self._whole = frozenset(whole)
        # User-defined pieces are never divided.
        stop = "|".join(map(re.escape, whole)) or "(?!)"
        # Without pieces that go on over the mark of a word's beginning, words are independent.
        word = f"▁(?:(?!{stop})[^▁])*|(?:(?!{stop})[^▁])+"
        crossing = any("▁" in piece[1:] for piece in self._scores)
        self._parts = re.compile(f"{stop}|(?:(?!{stop})[\\s\\S])+" if crossing else f"{stop}|{word}")

    def encode(self, text: str, strength: float, generator: random.Random) -> list[int]:
        """Ids of the model, without EOS."""
        ids: list[int] = []
        for part in self._parts.findall(self._processor.normalize(text)):
            for piece in [part] if part in self._whole else self._divide(part, strength, generator):
                if piece in self._ids:
                    ids.append(self._ids[piece])
                elif self._bytes:
                    ids += [self._bytes[f"<0x{byte:02X}>"] for byte in piece.encode()]
                elif ids[-1:] != [self._unknown]:  # SentencePiece joins unknown characters
                    ids.append(self._unknown)
        return ids

    @abc.abstractmethod
    def _divide(self, part: str, strength: float, generator: random.Random) -> list[str]:
        """The pieces of a part of a normalized text: a word, or what lies between user-defined pieces."""


class BpeDropout(Sampler):
    """BPE-dropout (Provilkov et al. 2020) with the merges of a SentencePiece BPE model. strength: the probability with which a
    merge is skipped; with 0 the ids are those of SentencePiece.
    """

    KEY, STORED, MODEL = "bpe_dropout", "dropout", "bpe"

    def _divide(self, part, strength, generator):
        """Merges the pair of the best score, of equal ones the first, until none is left; in each round every possible merge is
        left out with probability `strength`.
        """
        pieces = list(part)
        while len(pieces) > 1:
            best, at = -float("inf"), -1
            for i in range(len(pieces) - 1):
                score = self._scores.get(pieces[i] + pieces[i + 1])
                if score is not None and score > best and (not strength or generator.random() >= strength):
                    best, at = score, i
            if at < 0:
                break
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return pieces


@dataclasses.dataclass(frozen=True)
class _Ways:
    """The last pieces with which the segmentations of a text may end. starts: where they begin, in characters; cumulative:
    cumulative probabilities, the last one 1.
    """

    starts: list[int]
    cumulative: list[float]


class UnigramSampling(Sampler):
    """Segmentations of a unigram model (Kudo 2018, section 3.2, with all of them as candidates): x is drawn with probability
    proportional to P(x)^strength, by filtering forward and sampling backward. P(x) is the product of the probabilities of its
    pieces; an unknown character counts as in SentencePiece.
    """

    KEY, STORED, MODEL = "unigram_alpha", "alpha", "unigram"
    _UNKNOWN_PENALTY = 10.0
    """An unknown character has the lowest score less this (kUnkPenalty of SentencePiece)."""
    _CACHED_LENGTH = 20
    """Lattices of texts of at most this many characters are kept: words, not sentences without spaces."""

    def __init__(self, model):
        super().__init__(model)
        self._longest = max(map(len, self._scores), default=1)
        self._unknown_score = min(self._scores.values(), default=0.0) - self._UNKNOWN_PENALTY
        self._cached_lattice = functools.lru_cache(20_000)(self.lattice)

    def _divide(self, part, strength, generator):
        lattice = (self._cached_lattice if len(part) <= self._CACHED_LENGTH else self.lattice)(part, strength)
        pieces, end = [], len(part)
        while end:
            ways = lattice[end]
            draw = generator.random() if len(ways.starts) > 1 else 0.0
            start = ways.starts[bisect.bisect_right(ways.cumulative, draw)]
            pieces.append(part[start:end])
            end = start
        return pieces[::-1]

    def lattice(self, part: str, strength: float) -> list[_Ways]:
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
                    weights.append(totals[start] + strength * score)
            highest = max(weights)
            sums = list(itertools.accumulate(math.exp(weight - highest) for weight in weights))
            totals.append(highest + math.log(sums[-1]))
            lattice.append(_Ways(starts, [x / sums[-1] for x in sums]))
        return lattice


SAMPLERS: dict[str, type[Sampler]] = {sampler.KEY: sampler for sampler in (BpeDropout, UnigramSampling)}
"""Key of config.subwords -> its sampler."""
