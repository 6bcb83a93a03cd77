"""A language model as a table: small enough to enumerate, and its cache carries the history, so that a search that
reorders it wrongly is found out.
"""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

EOS = 1


@dataclasses.dataclass(frozen=True)
class TableModel:
    """log p(token | whole history, sentence): logits are a hash of the history that lies in the cache [B, K, T]."""

    vocab: int = 5
    scale: float = 2.0

    def __call__(self, params, tokens_BxK, position, cache):
        seed_B = cache["cross"]
        written = jnp.where(position > 0, tokens_BxK + 1, 0).astype(jnp.float32)
        place = jnp.maximum(position - 1, 0)
        column = jnp.where(position > 0, written, cache["self"][:, :, 0])
        history = jax.lax.dynamic_update_slice_in_dim(cache["self"], column[..., None], place, axis=2)
        weights = jnp.arange(1, history.shape[2] + 1) * 0.7391
        mixed = jnp.sum(history * weights, axis=-1) + seed_B[:, None] + params
        phase = mixed[..., None] * (1.0 + 0.37 * jnp.arange(self.vocab)) + jnp.arange(self.vocab) ** 2
        logits = self.scale * jnp.sin(phase)
        logits = jnp.where(jnp.arange(self.vocab) == 0, -1e9, logits)  # padding is never predicted
        return logits, cache | {"self": history}


def start(seeds, beam: int, length: int) -> dict:
    """The cache before the first token."""
    seeds = jnp.asarray(seeds, jnp.float32)
    return {"self": jnp.zeros((len(seeds), beam, length)), "cross": seeds}


def log_prob(model: TableModel, seed: float, tokens: tuple[int, ...], params: float = 0.0) -> float:
    """Sum of log-probabilities, computed alone in float64 NumPy."""
    total, weights = 0.0, np.arange(1, 100) * 0.7391
    for i, token in enumerate(tokens):
        history = np.array([t + 1 for t in tokens[:i]], np.float64)
        mixed = (history * weights[:i]).sum() + seed + params
        phase = mixed * (1.0 + 0.37 * np.arange(model.vocab)) + np.arange(model.vocab) ** 2
        logits = model.scale * np.sin(phase)
        logits[0] = -1e9
        total += logits[token] - np.log(np.exp(logits).sum())
    return total


def enumerate_all(model: TableModel, seed: float, cap: int, alpha: float, prefix: tuple[int, ...] = ()) -> list:
    """All sequences that end with EOS within `cap` tokens and begin with `prefix`: (score, tokens), best first."""
    out = []
    for length in range(1, cap + 1):
        for body in itertools.product(range(2, model.vocab), repeat=length - 1):
            tokens = (*body, EOS)
            if tokens[: len(prefix)] == prefix and len(body) >= len(prefix):
                penalty = math.pow((5 + length) / 6, alpha)
                out.append((log_prob(model, seed, tokens) / penalty, tokens))
    return sorted(out, reverse=True)
