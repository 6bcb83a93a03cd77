"""Greedy search and sampling over a step function (see `stages`)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from t2t_flax.decoding.stages import (
    EOS,
    NEG,
    Found,
    Hypotheses,
    SearchState,
    Step,
    allowed_only,
    empty_hypotheses,
    gather_beams,
    previous_tokens,
    run_in_stages,
)


@dataclasses.dataclass(frozen=True)
class SampleOptions:
    """`temperature` 0 is greedy. `top_k` 0 and `top_p` 1 leave the distribution whole."""

    num_samples: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


def sample(
    step: Step,
    params: Any,
    cache: Any,
    options: SampleOptions,
    *,
    caps_B: jax.Array,
    prefix_BxP: jax.Array,
    sentence_ids_B: jax.Array,
) -> Found:
    """`num_samples` outputs of each sentence, likeliest first; scores are the model's own log-probabilities.

    The noise of a token is a function of (seed, sentence id, sample, position), so that a sentence's samples do not
    depend on its batch-mates. `caps_B`, `prefix_BxP` as in `beam.beam_search`.
    """
    batch, beam, length = jax.tree.leaves(cache["self"])[0].shape[:3]
    alive = empty_hypotheses(batch, beam, length)
    alive = alive.replace(log_probs=jnp.zeros((batch, beam)))
    none = empty_hypotheses(batch, 1, length)
    state = SearchState(jnp.int32(0), alive, none, jnp.zeros(batch, bool), cache)
    advance = lambda s: _advance(step, options, params, s, caps_B, prefix_BxP, sentence_ids_B)  # noqa: E731
    return _result(run_in_stages(advance, state, int(jnp.max(caps_B))))


@jax.jit(static_argnums=(0, 1))
def _advance(step: Step, options: SampleOptions, params, state: SearchState, caps_B, prefix_BxP, ids_B) -> SearchState:
    length = state.alive.tokens.shape[-1]
    go_on = lambda s: (s.position < length) & ~jnp.all(s.done)  # noqa: E731
    return jax.lax.while_loop(go_on, lambda s: _extend(step, options, params, s, caps_B, prefix_BxP, ids_B), state)


def _extend(step: Step, options: SampleOptions, params, state: SearchState, caps_B, prefix_BxP, ids_B) -> SearchState:
    alive, position = state.alive, state.position
    logits, cache = step(params, previous_tokens(state), position, state.cache)
    log_p = jax.nn.log_softmax(logits, axis=-1)
    allowed = allowed_only(truncated(log_p, options), prefix_BxP, position)
    if options.temperature > 0:
        noise = _gumbel(options.seed, ids_B, log_p.shape, position)
        allowed = jnp.where(allowed > NEG / 2, allowed / options.temperature + noise, NEG)
    token_BxK = jnp.argmax(allowed, axis=-1).astype(jnp.int32)
    gained = jnp.take_along_axis(log_p, token_BxK[..., None], axis=-1)[..., 0]

    running = ~_ended(alive) & (position < caps_B)[:, None]
    column = jnp.where(running, token_BxK, 0)
    alive = alive.replace(
        tokens=jax.lax.dynamic_update_slice_in_dim(alive.tokens, column[..., None], position, axis=2),
        log_probs=alive.log_probs + jnp.where(running, gained, 0.0),
        lengths=alive.lengths + running,
    )
    done = jnp.all(_ended(alive), axis=1) | (position + 1 >= caps_B)
    return SearchState(position + 1, alive, state.finished, done, cache)


def truncated(log_p: jax.Array, options: SampleOptions) -> jax.Array:
    """log-probabilities [..., V] with what top-k and top-p exclude at NEG. top-p is taken at the given temperature."""
    if options.top_k:
        kth = jax.lax.top_k(log_p, min(options.top_k, log_p.shape[-1]))[0][..., -1:]
        log_p = jnp.where(log_p < kth, NEG, log_p)
    if options.top_p < 1.0:
        p = jax.nn.softmax(log_p / (options.temperature or 1.0), axis=-1)
        order = jnp.argsort(-p, axis=-1)
        before = jnp.cumsum(jnp.take_along_axis(p, order, axis=-1), axis=-1) - jnp.take_along_axis(p, order, axis=-1)
        keep = jnp.take_along_axis(before < options.top_p, jnp.argsort(order, axis=-1), axis=-1)
        log_p = jnp.where(keep, log_p, NEG)
    return log_p


def _ended(alive: Hypotheses) -> jax.Array:
    """bool [B, K]: whether the last token was EOS."""
    last = jnp.take_along_axis(alive.tokens, jnp.maximum(alive.lengths - 1, 0)[..., None], axis=2)[..., 0]
    return (alive.lengths > 0) & (last == EOS)


def _gumbel(seed: int, ids_B: jax.Array, shape: tuple[int, int, int], position) -> jax.Array:
    def one(sentence, k):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), sentence), k)
        return jax.random.gumbel(jax.random.fold_in(key, position), shape[-1:])

    samples = jnp.arange(shape[1])
    return jax.vmap(lambda sentence: jax.vmap(lambda k: one(sentence, k))(samples))(ids_B)


@jax.jit
def _result(state: SearchState) -> Found:
    alive = state.alive
    order = jnp.argsort(-alive.log_probs, axis=1, stable=True)
    best = gather_beams(alive, order)
    return Found(best.tokens, best.log_probs, best.log_probs, best.lengths, _ended(best))
