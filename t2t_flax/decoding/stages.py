"""What every search shares: its state, stages with a cache that is no longer than needed, and its result.

The step function: `step(params, tokens_BxK, position, cache) -> (logits_BxKxV float32, cache)`, where `tokens` were
chosen at position - 1 (at 0 they are ignored). `cache["self"]`: arrays [B, K, T, ...], whose beams are reordered and
whose T grows; `cache["cross"]`: arrays [B, ...] that all beams of a sentence share.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax
import jax
import jax.numpy as jnp

NEG = -1e9
PAD, EOS = 0, 1
Step = Callable[[Any, jax.Array, jax.Array, Any], tuple[jax.Array, Any]]


class Found(NamedTuple):
    """The N best of each sentence, best first.

    tokens int32 [B, N, T]: EOS included where finished, zeros after the end. scores: log_probs over the length penalty.
    lengths: tokens with EOS. finished: whether EOS was reached before the sentence's cap.
    """

    tokens: jax.Array
    scores: jax.Array
    log_probs: jax.Array
    lengths: jax.Array
    finished: jax.Array


@flax.struct.dataclass
class Hypotheses:
    """K hypotheses of each sentence: tokens [B, K, T], the others [B, K]."""

    tokens: jax.Array
    scores: jax.Array
    log_probs: jax.Array
    lengths: jax.Array


@flax.struct.dataclass
class SearchState:
    """`alive` go on, `finished` have ended with EOS; a sentence that is `done` [B] no longer changes."""

    position: jax.Array
    alive: Hypotheses
    finished: Hypotheses
    done: jax.Array
    cache: Any


def empty_hypotheses(batch: int, beam: int, length: int) -> Hypotheses:
    """Hypotheses that anything beats."""
    worst = jnp.full((batch, beam), NEG)
    zeros = jnp.zeros((batch, beam), jnp.int32)
    return Hypotheses(jnp.zeros((batch, beam, length), jnp.int32), worst, worst, zeros)


def run_in_stages(advance: Callable[[SearchState], SearchState], state: SearchState, longest: int) -> SearchState:
    """Runs `advance`, which goes to the end of the cache, and doubles the cache until all sentences are done.

    A cache of the full length would be read whole at every step, which takes several times longer. The lengths are
    first, 2 first, 4 first, ...: a closed list.
    """
    while True:
        state = advance(state)
        length = state.alive.tokens.shape[-1]
        if length >= longest or bool(jnp.all(state.done)):
            return state
        state = _grow(state, 2 * length)


@jax.jit(static_argnums=1)
def _grow(state: SearchState, length: int) -> SearchState:
    def pad(x, axis):
        return jnp.pad(x, [(0, length - x.shape[axis]) if a == axis else (0, 0) for a in range(x.ndim)])

    hypotheses = lambda h: h.replace(tokens=pad(h.tokens, 2))  # noqa: E731
    return state.replace(
        alive=hypotheses(state.alive),
        finished=hypotheses(state.finished),
        cache=state.cache | {"self": jax.tree.map(lambda x: pad(x, 2), state.cache["self"])},
    )


def previous_tokens(state: SearchState) -> jax.Array:
    """The tokens [B, K] chosen one position before."""
    before = jnp.maximum(state.position - 1, 0)
    return jax.lax.dynamic_index_in_dim(state.alive.tokens, before, axis=2, keepdims=False)


def allowed_only(log_p: jax.Array, prefix_BxP: jax.Array, position: jax.Array) -> jax.Array:
    """log-probabilities [B, K, V] with padding impossible, and where the prefix still holds a token, all others too."""
    log_p = jnp.where(jnp.arange(log_p.shape[-1]) == PAD, NEG, log_p)
    if prefix_BxP.shape[1] == 0:
        return log_p
    place = jnp.minimum(position, prefix_BxP.shape[1] - 1)
    token_B = jax.lax.dynamic_index_in_dim(prefix_BxP, place, axis=1, keepdims=False)
    forced_B = (position < prefix_BxP.shape[1]) & (token_B > 0)
    other = jnp.arange(log_p.shape[-1]) != token_B[:, None, None]
    return jnp.where(forced_B[:, None, None] & other, NEG, log_p)


def gather_beams(tree: Any, beam_BxN: jax.Array) -> Any:
    """Leaves [B, K, ...] -> [B, N, ...], with `beam` chosen for each sentence."""

    def gather(x):
        index = beam_BxN.reshape(*beam_BxN.shape, *(1,) * (x.ndim - 2))
        return jnp.take_along_axis(x, index, axis=1)

    return jax.tree.map(gather, tree)


def where_done(done_B: jax.Array, old: Any, new: Any) -> Any:
    """`old` for sentences that are done, `new` for the others."""

    def choose(a, b):
        return jnp.where(done_B.reshape(-1, *(1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(choose, old, new)


def concatenate(a: Hypotheses, b: Hypotheses) -> Hypotheses:
    """The hypotheses of both."""
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y], axis=1), a, b)
