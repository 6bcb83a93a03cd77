"""Beam search (6.1), jit-compiled, over a step function (see `stages`)."""

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
    concatenate,
    empty_hypotheses,
    gather_beams,
    previous_tokens,
    run_in_stages,
    where_done,
)
from t2t_flax.decoding.top_k import top_k


@dataclasses.dataclass(frozen=True)
class BeamOptions:
    """`n_best` <= `beam_size` hypotheses are returned; `alpha` >= 0 is the exponent of the length penalty."""

    beam_size: int
    alpha: float = 0.6
    n_best: int = 1

    def __post_init__(self):
        if self.alpha < 0:
            raise ValueError(f"alpha {self.alpha} < 0: the early stop would no longer be exact")
        if self.n_best > self.beam_size:
            raise ValueError(f"n_best {self.n_best} > beam_size {self.beam_size}")


def length_penalty(length: Any, alpha: float) -> Any:
    """((5 + L) / 6)^alpha, L counting EOS (Wu et al. 2016, equation 14; 6.1)."""
    return ((5.0 + length) / 6.0) ** alpha


def beam_search(
    step: Step, params: Any, cache: Any, options: BeamOptions, *, caps_B: jax.Array, prefix_BxP: jax.Array
) -> Found:
    """The n best hypotheses of each sentence by log P / length_penalty(L).

    `step`: hashable. `caps_B` int32: each sentence's largest number of tokens, EOS included, whatever its batch-mates
    have. `prefix_BxP` int32, zero-padded: tokens that every hypothesis begins with; their log-probabilities count.
    Hypotheses that have not ended at the cap are returned only where there are fewer than n that have.
    """
    batch, beam, length = jax.tree.leaves(cache["self"])[0].shape[:3]
    state = _initial(cache, batch, beam, length)
    advance = lambda state: _advance(step, options, params, state, caps_B, prefix_BxP)  # noqa: E731
    return _result(options, run_in_stages(advance, state, int(jnp.max(caps_B))), caps_B)


def _initial(cache: Any, batch: int, beam: int, length: int) -> SearchState:
    alive = empty_hypotheses(batch, beam, length)
    only_first = jnp.where(jnp.arange(beam) == 0, 0.0, NEG)  # all beams are the same at first
    alive = alive.replace(log_probs=jnp.broadcast_to(only_first, (batch, beam)))
    finished = empty_hypotheses(batch, beam, length)
    return SearchState(jnp.int32(0), alive, finished, jnp.zeros(batch, bool), cache)


@jax.jit(static_argnums=(0, 1))
def _advance(step: Step, options: BeamOptions, params, state: SearchState, caps_B, prefix_BxP) -> SearchState:
    length = state.alive.tokens.shape[-1]
    go_on = lambda s: (s.position < length) & ~jnp.all(s.done)  # noqa: E731
    return jax.lax.while_loop(go_on, lambda s: _extend(step, options, params, s, caps_B, prefix_BxP), state)


def _extend(step: Step, options: BeamOptions, params, state: SearchState, caps_B, prefix_BxP) -> SearchState:
    """One token more for every sentence that is not done."""
    beam, position = options.beam_size, state.position
    logits, cache = step(params, previous_tokens(state), position, state.cache)
    log_p_BxKxV = allowed_only(jax.nn.log_softmax(logits, axis=-1), prefix_BxP, position)

    # 2 K candidates: even if K of them end here, K others go on.
    candidates, beam_BxC = _candidates(state.alive, log_p_BxKxV, 2 * beam, position, options.alpha)
    ends = jnp.take(candidates.tokens, position, axis=2) == EOS
    possible = candidates.log_probs > NEG / 2
    ended = candidates.replace(scores=jnp.where(ends & possible, candidates.scores, NEG))
    finished = _best(concatenate(state.finished, ended), beam)
    still = candidates.replace(log_probs=jnp.where(ends, NEG, candidates.log_probs))
    _, chosen = jax.lax.top_k(still.log_probs, beam)
    alive = gather_beams(still, chosen)
    kept = gather_beams(cache["self"], jnp.take_along_axis(beam_BxC, chosen, axis=1))

    # No alive hypothesis can score more than its log-probability now over the largest penalty that it can reach.
    bound_B = alive.log_probs[:, 0] / length_penalty(caps_B, options.alpha)
    settled_B = finished.scores[:, options.n_best - 1] > bound_B
    done = state.done | settled_B | (position + 1 >= caps_B)
    alive, finished = where_done(state.done, (state.alive, state.finished), (alive, finished))
    return SearchState(position + 1, alive, finished, done, cache | {"self": kept})


def _candidates(alive: Hypotheses, log_p_BxKxV, count: int, position, alpha: float) -> tuple[Hypotheses, jax.Array]:
    """The best `count` continuations of the alive hypotheses by log-probability, and the beam that each extends."""
    batch, beam, vocab = log_p_BxKxV.shape
    each = min(count, vocab)
    values, tokens = top_k(alive.log_probs[..., None] + log_p_BxKxV, each)
    log_probs, place = jax.lax.top_k(values.reshape(batch, beam * each), min(count, beam * each))
    beam_BxC = place // each
    token_BxC = jnp.take_along_axis(tokens.reshape(batch, beam * each), place, axis=1)
    sequences = gather_beams(alive.tokens, beam_BxC)
    sequences = jax.lax.dynamic_update_slice_in_dim(sequences, token_BxC[..., None], position, axis=2)
    lengths = jnp.full(log_probs.shape, position + 1, jnp.int32)
    scores = log_probs / length_penalty(lengths, alpha)
    return Hypotheses(sequences, scores, log_probs, lengths), beam_BxC


def _best(hypotheses: Hypotheses, count: int) -> Hypotheses:
    _, chosen = jax.lax.top_k(hypotheses.scores, count)
    return gather_beams(hypotheses, chosen)


@jax.jit(static_argnums=0)
def _result(options: BeamOptions, state: SearchState, caps_B) -> Found:
    alive, finished = state.alive, state.finished
    alive = alive.replace(scores=alive.log_probs / length_penalty(alive.lengths, options.alpha))
    alive = alive.replace(scores=jnp.where(alive.log_probs > NEG / 2, alive.scores, 2 * NEG))
    n = options.n_best
    ended = finished.scores > NEG / 2
    both = concatenate(finished, alive)
    rank = jnp.concatenate([jnp.where(ended, 0, 2), jnp.ones_like(alive.lengths)], axis=1)
    order = jnp.lexsort((-both.scores, rank), axis=1)[:, :n]
    best = gather_beams(both, order)
    is_finished = gather_beams(jnp.concatenate([ended, jnp.zeros_like(ended)], axis=1), order)
    return Found(best.tokens, best.scores, best.log_probs, best.lengths, is_finished)
