"""One of the segmentations of a corpus, a function of its number."""

import dataclasses
import functools
import random
from collections.abc import Sequence

from t2t_flax.data.encoding import Encode
from t2t_flax.data.hashing import key_of
from t2t_flax.data.tokenizers.base import Tokenizer
from t2t_flax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from t2t_flax.errors import UserError
from t2t_flax.extensions.subwords.samplers import SAMPLERS, Sampler


@dataclasses.dataclass(frozen=True)
class Segmentation:
    """key: of config.subwords, in `SAMPLERS`; strength: its value. seed, number: which one."""

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
        """See `data.encoding.Segmentation`. Sentences that are too long as they are keep their one segmentation: drawing
        takes time with their square.
        """
        generator = random.Random(key_of(self.seed, 9, self.number, chunk))

        def encode(tokenizer: Tokenizer, text: str) -> list[int]:
            ids = tokenizer.encode(text)
            return ids if len(ids) >= max_length else self.draw(tokenizer, text, generator)

        return [functools.partial(encode, tokenizer) for tokenizer in sides]

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
