"""Greedy search that is told its tokens."""

import flax.struct
import jax

from t2t_flax.config import Config
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.decoding.sampling import Sampling


@flax.struct.dataclass
class Chosen:
    """What `WithDraft.decode_step` returns in place of logits: the token at a position, int32 [B, 1], and its log-probability."""

    tokens_BxK: jax.Array
    log_probs_BxK: jax.Array


class GreedySearch(Sampling):
    """A `Search` that takes the model's `Chosen` token; from logits, as a run in training has them, the likeliest."""

    def advance(self, sentences, position, state, logits_BxKxV):
        if not isinstance(logits_BxKxV, Chosen):
            return super().advance(sentences, position, state, logits_BxKxV)
        chosen = logits_BxKxV
        return self.append(sentences, position, state, chosen.tokens_BxK, chosen.log_probs_BxK), None


def speculative(config: Config, tokenizers: TokenizerPair) -> GreedySearch:
    """decode.strategy = speculative."""
    return GreedySearch(temperature=0.0)
