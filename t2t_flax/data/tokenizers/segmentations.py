"""Subword regularisation: segmentations drawn at random, as a function of a key."""

import dataclasses
import random
import re

from t2t_flax.data.hashing import key_of
from t2t_flax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Segmentation:
    """One of the segmentations of a corpus. dropout: probability with which a merge is skipped. seed, number: which one."""

    dropout: float
    seed: int
    number: int

    def generator(self, chunk: int) -> random.Random:
        """The generator of a chunk of the corpus, in the order of its sentences, source before target."""
        return random.Random(key_of(self.seed, 9, self.number, chunk))


class BpeDropout:
    """BPE-dropout (Provilkov et al. 2020) with the merges of a SentencePiece BPE model. Without dropout it gives SentencePiece's
    own ids. SentencePiece samples too, but its draws cannot be repeated in another process.
    """

    def __init__(self, model: bytes):
        """Raises UserError if it is not a BPE model."""
        from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

        proto = sentencepiece_model_pb2.ModelProto.FromString(model)
        if proto.trainer_spec.model_type != proto.trainer_spec.BPE:
            raise UserError("config.data.bpe_dropout needs a BPE model: this SentencePiece model has other pieces.")
        kinds = proto.SentencePiece
        self._processor = SentencePieceProcessor(model_proto=model)
        self._ids = {p.piece: i for i, p in enumerate(proto.pieces) if p.type in (kinds.NORMAL, kinds.USER_DEFINED)}
        self._scores = {p.piece: p.score for p in proto.pieces if p.type == kinds.NORMAL}
        self._bytes = {p.piece: i for i, p in enumerate(proto.pieces) if p.type == kinds.BYTE}
        self._unknown = next(i for i, p in enumerate(proto.pieces) if p.type == kinds.UNKNOWN)
        whole = sorted((p.piece for p in proto.pieces if p.type == kinds.USER_DEFINED), key=len, reverse=True)
        # Merges never cross the mark that begins a word; user-defined pieces are never divided.
        stop = "|".join(map(re.escape, whole)) or "(?!)"
        self._parts = re.compile(f"{stop}|▁(?:(?!{stop})[^▁])*|(?:(?!{stop})[^▁])+")
        self._whole = frozenset(whole)

    def encode(self, text: str, dropout: float, generator: random.Random) -> list[int]:
        """Ids of the model, without EOS."""
        ids: list[int] = []
        for part in self._parts.findall(self._processor.normalize(text)):
            for piece in [part] if part in self._whole else self._merge(list(part), dropout, generator):
                if piece in self._ids:
                    ids.append(self._ids[piece])
                elif self._bytes:
                    ids += [self._bytes[f"<0x{byte:02X}>"] for byte in piece.encode()]
                elif ids[-1:] != [self._unknown]:  # SentencePiece joins unknown characters
                    ids.append(self._unknown)
        return ids

    def _merge(self, pieces: list[str], dropout: float, generator: random.Random) -> list[str]:
        """Merges the pair of the best score, of equal ones the first, until none is left; in each round every possible merge is
        left out with probability `dropout`.
        """
        while len(pieces) > 1:
            best, at = -float("inf"), -1
            for i in range(len(pieces) - 1):
                score = self._scores.get(pieces[i] + pieces[i + 1])
                if score is not None and score > best and (not dropout or generator.random() >= dropout):
                    best, at = score, i
            if at < 0:
                break
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return pieces
