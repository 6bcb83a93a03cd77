"""Greedy search and sampling with temperature, top-k and top-p, over the same step function as beam search."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from t2t_flax.config.special_tokens import EOS, PAD
from t2t_flax.decoding.search_loop import (
    IMPOSSIBLE,
    LENGTHS,
    Cache,
    SearchResult,
    Sentences,
    StepFn,
    forced_tokens,
    hypotheses_of,
    make_sentences,
    run_stages,
)
from t2t_flax.decoding.top_k import log_sum_exp, top_k
from t2t_flax.errors import UserError

_GROUP = 128
_INFINITY_BITS = 0x7F800000  # of a float32


@dataclasses.dataclass(frozen=True)
class SampleOptions:
    """num_samples: outputs per sentence (K). temperature: divides the logits; 0 = greedy (argmax).

    top_k: sample from the k likeliest tokens, 0 = all. top_p: sample from the smallest set of likeliest tokens with
    at least this probability mass, after temperature and top_k; 1 = all.
    """

    num_samples: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    eos_id: int = EOS

    def __post_init__(self):
        for name, valid, range_ in [
            ("num_samples", self.num_samples >= 1, "at least 1"),
            ("temperature", 0 <= self.temperature < float("inf"), "0 (greedy) or a positive number"),
            ("top_k", self.top_k >= 0, "0 (all tokens) or a positive number"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1 (all tokens)"),
        ]:
            if not valid:
                raise UserError(f"sampling: {name} = {getattr(self, name)}, expected {range_}.")


@flax.struct.dataclass
class _State:
    done_B: jax.Array
    last_BxK: jax.Array
    tokens_BxKxT: jax.Array
    log_probs_BxK: jax.Array
    lengths_BxK: jax.Array
    ended_BxK: jax.Array


def sample(
    step_fn: StepFn,
    params: Any,
    cache: Cache,
    options: SampleOptions,
    *,
    caps_B,
    sentence_ids_B,
    prefix_BxP=None,
    lengths: Sequence[int] = LENGTHS,
    rehearse: int = 0,
) -> SearchResult:
    """`num_samples` outputs per sentence, ordered by sample index, not by score.

    The noise is a function of seed, sentence id, sample index and position, so an output does not depend on its
    batch. `log_probs` are the model's own (temperature 1, all tokens) and `scores` equal them. Padding is never
    generated. caps_B, prefix_BxP, cache, lengths, rehearse: as in `beam_search`. Raises ValueError for a cache of another
    number of samples.
    """
    samples = hypotheses_of(cache)
    if samples - {options.num_samples}:
        raise ValueError(f"the cache has {sorted(samples)} samples, but options.num_samples = {options.num_samples}")
    keys_BxK = _keys(_seed_key(options.seed), jnp.asarray(sentence_ids_B, jnp.uint32), options.num_samples)
    sentences = make_sentences(caps_B, prefix_BxP, keys_BxK)
    options = dataclasses.replace(options, seed=0)  # already in the keys; a new seed must not recompile
    state = run_stages(step_fn, _advance, options, params, cache, sentences, _start, lengths, rehearse)
    return SearchResult(
        tokens=state.tokens_BxKxT,
        scores=state.log_probs_BxK,
        log_probs=state.log_probs_BxK,
        lengths=state.lengths_BxK,
        finished=state.ended_BxK,
    )


def _seed_key(seed: int) -> jax.Array:
    # jax.random.key keeps 32 bits of the seed. The generator is fixed: others draw the noise of a batch as a whole.
    low, high = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    return jax.random.fold_in(jax.random.key(low, impl="threefry2x32"), high)


@functools.partial(jax.jit, static_argnums=2)
def _keys(key, ids_B, num_samples: int):
    sentence_keys_B = jax.vmap(lambda i: jax.random.fold_in(key, i))(ids_B)
    return jax.vmap(lambda k: jax.vmap(lambda i: jax.random.fold_in(k, i))(jnp.arange(num_samples)))(sentence_keys_B)


def _start(options: SampleOptions, sentences: Sentences, length: int) -> _State:
    shape = (len(sentences.caps_B), options.num_samples)
    return _State(
        done_B=sentences.caps_B < 1,
        last_BxK=jnp.zeros(shape, jnp.int32),
        tokens_BxKxT=jnp.zeros((*shape, length), jnp.int32),
        log_probs_BxK=jnp.zeros(shape),
        lengths_BxK=jnp.zeros(shape, jnp.int32),
        ended_BxK=jnp.zeros(shape, bool),
    )


def _advance(options: SampleOptions, sentences: Sentences, position, state: _State, logits_BxKxV):
    tokens_BxK = _draw(options, sentences.keys_BxK, position, logits_BxKxV)
    forced_B = forced_tokens(sentences, position)
    if forced_B is not None:
        tokens_BxK = jnp.where(forced_B[:, None] == PAD, tokens_BxK, forced_B[:, None])
    log_probs_BxK = _take(logits_BxKxV, tokens_BxK) - log_sum_exp(logits_BxKxV)[..., 0]

    ended_BxK = state.ended_BxK | (tokens_BxK == options.eos_id)
    tokens_BxK = jnp.where(state.ended_BxK, PAD, tokens_BxK)
    new = _State(
        done_B=jnp.all(ended_BxK, axis=1) | (position + 1 >= sentences.caps_B),
        last_BxK=tokens_BxK,
        tokens_BxKxT=state.tokens_BxKxT.at[:, :, position].set(tokens_BxK),
        log_probs_BxK=jnp.where(state.ended_BxK, state.log_probs_BxK, state.log_probs_BxK + log_probs_BxK),
        lengths_BxK=jnp.where(state.ended_BxK, state.lengths_BxK, position + 1),
        ended_BxK=ended_BxK,
    )
    return new, None


def _draw(options: SampleOptions, keys_BxK, position, logits_BxKxV) -> jax.Array:
    """One token per sample, int32 [B, K], from the softmax of logits / temperature over the allowed tokens."""
    V = logits_BxKxV.shape[-1]
    excluded = (jnp.arange(V) == PAD) | (logits_BxKxV <= IMPOSSIBLE)
    logits_BxKxV = jnp.where(excluded, -jnp.inf, logits_BxKxV)
    if options.temperature == 0:
        return top_k(logits_BxKxV, 1)[1][..., 0]
    candidates_BxKxC, ids_BxKxC = logits_BxKxV, None
    if options.top_k:
        candidates_BxKxC, ids_BxKxC = top_k(logits_BxKxV, min(options.top_k, V))
    candidates_BxKxC = candidates_BxKxC / options.temperature
    if options.top_p < 1:
        candidates_BxKxC = jnp.where(nucleus(candidates_BxKxC, options.top_p), candidates_BxKxC, -jnp.inf)
    step_keys_BxK = _fold_in(keys_BxK, position)
    drawn_BxK = _categorical(step_keys_BxK, candidates_BxKxC)
    return drawn_BxK if ids_BxKxC is None else _take(ids_BxKxC, drawn_BxK)


def nucleus(logits: jax.Array, top_p: float) -> jax.Array:
    """The smallest set of likeliest tokens with probability at least `top_p`: bool of the logits' shape [..., C].

    Ties go to the lower index. Equal to sorting the tokens and summing their probabilities, without the sort: two
    bisections find the last token of the set. A token belongs to it if the tokens before it have less than `top_p`.
    """
    # Distances to the largest logit are not negative, so their bits are ordered as they are.
    distances = jnp.max(logits, axis=-1, keepdims=True) - logits
    bits, weights = jax.lax.bitcast_convert_type(distances, jnp.int32), jnp.exp(-distances)
    index = jnp.arange(logits.shape[-1])
    wanted = top_p * jnp.sum(weights, axis=-1, keepdims=True)

    def weight_nearer(bound):
        return jnp.sum(jnp.where(bits < bound, weights, 0.0), axis=-1, keepdims=True)

    farthest = _last_below(weight_nearer, wanted, limit=_INFINITY_BITS)
    nearer, tied = weight_nearer(farthest), bits == farthest
    tied_weight = jnp.max(jnp.where(tied, weights, 0.0), axis=-1, keepdims=True)

    def weight_before(bound):
        return nearer + tied_weight * jnp.sum(tied & (index < bound), axis=-1, keepdims=True)

    last = _last_below(weight_before, wanted, limit=logits.shape[-1])
    return (bits < farthest) | (tied & (index <= last))


def _last_below(weight: Callable[[jax.Array], jax.Array], wanted: jax.Array, limit: int) -> jax.Array:
    """The largest n in 0..limit - 1 with weight(n) < wanted, int32 of the shape of `wanted`.

    `weight` must not decrease, weight(0) be less than `wanted` and weight(limit) at least that.
    """

    def halve(_, bounds):
        low, high = bounds
        middle = low + (high - low) // 2
        below = weight(middle) < wanted
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    bounds = jnp.zeros(wanted.shape, jnp.int32), jnp.full(wanted.shape, limit, jnp.int32)
    return jax.lax.fori_loop(0, limit.bit_length(), halve, bounds)[0]


def _categorical(keys_BxK: jax.Array, logits_BxKxC: jax.Array) -> jax.Array:
    """An index of C per key, int32 [B, K], drawn from the softmax of the logits.

    Draws a group of neighbours by the groups' total probabilities, then one of the group: noise for two small sets costs
    a fraction of noise for all of C.
    """
    C = logits_BxKxC.shape[-1]
    groups_BxKxC = jnp.pad(logits_BxKxC, [(0, 0), (0, 0), (0, -C % _GROUP)], constant_values=-jnp.inf)
    groups_BxKxGxN = groups_BxKxC.reshape(*logits_BxKxC.shape[:2], -1, _GROUP)
    group_BxK = _gumbel_argmax(_fold_in(keys_BxK, 0), jax.nn.logsumexp(groups_BxKxGxN, axis=-1))
    members_BxKxN = jnp.take_along_axis(groups_BxKxGxN, group_BxK[..., None, None], axis=2)[:, :, 0]
    return group_BxK * _GROUP + _gumbel_argmax(_fold_in(keys_BxK, 1), members_BxKxN)


def _gumbel_argmax(keys_BxK: jax.Array, logits_BxKxC: jax.Array) -> jax.Array:
    noise = jax.vmap(jax.vmap(lambda key: jax.random.gumbel(key, logits_BxKxC.shape[2:])))
    return jnp.argmax(logits_BxKxC + noise(keys_BxK), axis=-1).astype(jnp.int32)


def _fold_in(keys_BxK: jax.Array, data) -> jax.Array:
    return jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, data)))(keys_BxK)


def _take(x_BxKxC: jax.Array, index_BxK: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x_BxKxC, index_BxK[..., None], axis=-1)[..., 0]
