"""Greedy search and sampling with temperature, top-k and top-p, over the same step function as beam search."""

import dataclasses
import functools
from collections.abc import Sequence
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
    make_sentences,
    run_stages,
)
from t2t_flax.decoding.top_k import top_k
from t2t_flax.errors import UserError


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
) -> SearchResult:
    """`num_samples` outputs per sentence, ordered by sample index, not by score.

    The noise is a function of seed, sentence id, sample index and position, so an output does not depend on its
    batch. `log_probs` are the model's own (temperature 1, all tokens) and `scores` equal them. Padding is never
    generated. caps_B, prefix_BxP, cache, lengths: as in `beam_search`. Raises ValueError for a cache of another
    number of samples.
    """
    samples = {leaf.shape[1] for leaf in jax.tree.leaves(cache["self"])}
    if samples - {options.num_samples}:
        raise ValueError(f"the cache has {sorted(samples)} samples, but options.num_samples = {options.num_samples}")
    keys_BxK = _keys(_seed_key(options.seed), jnp.asarray(sentence_ids_B, jnp.uint32), options.num_samples)
    sentences = make_sentences(caps_B, prefix_BxP, keys_BxK)
    options = dataclasses.replace(options, seed=0)  # already in the keys; a new seed must not recompile
    state = run_stages(step_fn, _advance, options, params, cache, sentences, _start, lengths)
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
    chosen_BxK = jnp.take_along_axis(logits_BxKxV, tokens_BxK[..., None], axis=2)[..., 0]
    log_probs_BxK = chosen_BxK - jax.nn.logsumexp(logits_BxKxV, axis=-1)

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
    """One token per sample, int32 [B, K]: argmax of logits / temperature + Gumbel noise over the allowed tokens."""
    V = logits_BxKxV.shape[-1]
    excluded = (jnp.arange(V) == PAD) | (logits_BxKxV <= IMPOSSIBLE)
    logits_BxKxV = jnp.where(excluded, -jnp.inf, logits_BxKxV)
    if options.temperature == 0:
        return top_k(logits_BxKxV, 1)[1][..., 0]
    # The candidates C are sorted, likeliest first, only if top_k or top_p needs it.
    candidates_BxKxC, ids_BxKxC = logits_BxKxV, jnp.broadcast_to(jnp.arange(V, dtype=jnp.int32), logits_BxKxV.shape)
    if options.top_k or options.top_p < 1:
        candidates_BxKxC, ids_BxKxC = top_k(logits_BxKxV, min(options.top_k or V, V))
    candidates_BxKxC = candidates_BxKxC / options.temperature
    if options.top_p < 1:
        probs_BxKxC = jax.nn.softmax(candidates_BxKxC, axis=-1)
        before_BxKxC = jnp.cumsum(probs_BxKxC, axis=-1) - probs_BxKxC
        candidates_BxKxC = jnp.where(before_BxKxC < options.top_p, candidates_BxKxC, -jnp.inf)
    noise = jax.vmap(jax.vmap(lambda k: jax.random.gumbel(jax.random.fold_in(k, position), candidates_BxKxC.shape[2:])))
    drawn_BxK = jnp.argmax(candidates_BxKxC + noise(keys_BxK), axis=-1)
    return jnp.take_along_axis(ids_BxKxC, drawn_BxK[..., None], axis=-1)[..., 0]
