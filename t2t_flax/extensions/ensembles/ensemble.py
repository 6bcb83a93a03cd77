"""Several Transformers with one target vocabulary as one model.

Each has its parameters and cache.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t2t_flax.config import Model
from t2t_flax.models.transformer import Transformer


class Ensemble(nn.Module):
    """Ensemble that decodes, scores and gives the validation loss like a `Transformer`.

    It has the methods that these need. Parameters of member i are under `members_i`.

    Args:
        weights: weight of each member; their sum is 1.
        mean: see `mean_of`.
    """

    members: tuple[Transformer, ...]
    weights: tuple[float, ...]
    mean: str

    @property
    def config(self) -> Model:
        """Config of the first member, which has the fewest positions."""
        return self.members[0].config

    @property
    def dtype(self) -> jnp.dtype:
        return self.members[0].dtype

    @property
    def target_vocab(self) -> int:
        return self.members[0].target_vocab

    @property
    def logits_chunk(self) -> int:
        return self.members[0].logits_chunk

    def start_cache(self, source_BxS: jax.Array, beam_size: int, length: int) -> dict[str, Any]:
        """See `Transformer.start_cache`; each entry is a list with one cache per member."""
        caches = [member.start_cache(source_BxS, beam_size, length) for member in self.members]
        return {name: [cache[name] for cache in caches] for name in caches[0]}

    def decode_step(self, tokens_BxK: jax.Array, position: jax.Array, cache: dict[str, Any]):
        """See `Transformer.decode_step`."""
        logits, own = [], []
        for i, member in enumerate(self.members):
            part = {name: cache[name][i] for name in ("self", "cross")}
            logits_BxKxV, part = member.decode_step(tokens_BxK, position, part)
            logits.append(logits_BxKxV)
            own.append(part["self"])
        return mean_of(logits, self.weights, self.mean), cache | {"self": own}

    def hidden(self, batch: dict[str, jax.Array], noise: None = None) -> jax.Array:
        """Return the decoder outputs of all members, [B, T, sum of their D]."""
        return jnp.concatenate(
            [member.hidden(batch).astype(jnp.float32) for member in self.members], axis=-1
        )

    def logits(self, x: jax.Array) -> jax.Array:
        """Map `hidden` to logits, float32 [..., V rows]."""
        widths = [member.config.d_model for member in self.members]
        parts = jnp.split(x, [sum(widths[:i]) for i in range(1, len(widths))], axis=-1)
        logits = [
            member.logits(part.astype(member.dtype))
            for member, part in zip(self.members, parts, strict=True)
        ]
        return mean_of(logits, self.weights, self.mean)


def mean_of(logits: list[jax.Array], weights: tuple[float, ...], mean: str) -> jax.Array:
    """Return float32 logits [..., V rows] of the weighted mean of the models.

    The mean is taken over "probabilities", or over "log_probabilities", which the softmax
    normalizes. Rows that pad the vocabulary are cut to the length of the model with the fewest.
    """
    rows = min(x.shape[-1] for x in logits)
    log_probs = [jax.nn.log_softmax(x.astype(jnp.float32))[..., :rows] for x in logits]
    if mean == "log_probabilities":
        return sum(
            (weight * x for weight, x in zip(weights, log_probs, strict=True)), jnp.zeros(())
        )
    stacked = jnp.stack([jnp.log(weight) + x for weight, x in zip(weights, log_probs, strict=True)])
    return jax.nn.logsumexp(stacked, axis=0)
