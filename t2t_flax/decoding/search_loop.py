"""Decoding loop shared by beam search and sampling: one token per iteration.

The search is a `Search`, the model a function `step_fn`; neither depends on the other. A stage is
one compiled loop. It ends when the cache is full or all sentences are done. The cache and the
sequence buffers grow between stages, because attention over a cache much longer than the sequence
would dominate the step.

Dimensions: B sentences, K hypotheses (beams or samples), T buffer length, V vocabulary, P prefix
length.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from t2t_flax.config.data_keys import PAD
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.distributed.mesh import PyTree
from t2t_flax.models.decoding_cache import DecodingCache

IMPOSSIBLE = -1e8  # logits at or below this belong to rows that pad the vocabulary
_STEPS = (8, 32)
_TOKENS_READ = 32 * 32 * 4 * 32
"""Bound on the tokens per call of a program.

Other threads get the device between calls. A call decodes 8 to 32 tokens, fewer for many hypotheses
or a long cache. It decodes 32 for 32 sentences, 4 beams and 32 tokens.
"""
LENGTHS = (32, 64, 128, 256, 512, 1024)
"""Sizes of the cache in target tokens; it grows from one to the next."""

Cache = dict[str, PyTree]
# step_fn(params, tokens_BxK, position, cache) -> (logits_BxKxV, cache): logits of the tokens at
# `position`, given the tokens at position - 1 (ignored at position 0). Leaves of cache["self"] are
# a `DecodingCache` (attention), or arrays [B, K, ...] that are reordered with the hypotheses. Such
# arrays with three or more axes have time on axis 2, except under a key "state" (recurrent layers).
# All other entries of the cache are [B, ...] and never change; cache["sentences"] holds the
# search's `Sentences`.
StepFn = Callable[[PyTree, jax.Array, jax.Array, Cache], tuple[jax.Array, Cache]]


@flax.struct.dataclass
class Sentences:
    """Search inputs per sentence.

    Args:
        caps_B: maximum tokens, EOS included, int32.
        keys_BxK: random keys.
        more: arrays [B, ...] by name, read by rules and searches of extensions; "prefix": forced
            first tokens [B, P], 0 = free; "start": first token [B], of probability 1, 0 = none.
    """

    caps_B: PyTree
    keys_BxK: jax.Array | None = None
    more: dict[str, PyTree] = flax.struct.field(default_factory=dict)


@flax.struct.dataclass
class SearchResult:
    """N hypotheses per sentence, axes [B, N].

    A slot without a hypothesis (fewer than N sequences are possible, or a sample cannot go on) has
    length 0 and score -inf.

    Args:
        tokens: int32 [B, N, T], with EOS if the hypothesis finished, then 0; T is at least
            max(lengths) and depends on the batch.
        scores: log-probability divided by the length penalty, float32.
        log_probs: log-probability in nats, forced tokens and EOS included, float32.
        lengths: int32, EOS included.
        finished: bool, False if cut off at the cap.
    """

    tokens: jax.Array
    scores: jax.Array
    log_probs: jax.Array
    lengths: jax.Array
    finished: jax.Array


class Search(Protocol):
    """Search algorithm; frozen, because equal searches share compiled programs.

    The state is a struct of arrays [B, ...] with the fields `done_B` and `last_BxK` (the latest
    tokens). Arrays with three axes are sequence buffers [B, K, T], except under a key "state".
    `width` is K, and `draws` says whether the search reads random keys.
    """

    @property
    def width(self) -> int: ...

    @property
    def draws(self) -> bool: ...

    def start(self, sentences: Sentences, length: int) -> PyTree:
        """Return the state before the first token, with buffers for `length` tokens."""

    def advance(
        self, sentences: Sentences, position: jax.Array, state: PyTree, logits_BxKxV: jax.Array
    ) -> tuple[PyTree, jax.Array | None]:
        """Return the state after one more token, and each hypothesis' parent.

        Parents are int32 [B, K]; None means that each hypothesis continues itself.
        """

    def result(self, sentences: Sentences, state: PyTree) -> SearchResult:
        """Return the hypotheses of a state in which all sentences are done."""


def forced_tokens(sentences: Sentences, position: jax.Array) -> jax.Array | None:
    """Return the prefix tokens at `position`, int32 [B]; None without prefixes.

    0 = not forced.
    """
    prefix_BxP = sentences.more.get("prefix")
    return (
        None
        if prefix_BxP is None
        else jnp.take(prefix_BxP, position, axis=1, mode="fill", fill_value=PAD)
    )


def run_search(
    step_fn: StepFn,
    params: PyTree,
    cache: Cache,
    search: Search,
    sentences: Sentences,
    *,
    lengths: Sequence[int] = LENGTHS,
) -> SearchResult:
    """Decode until every sentence is done.

    The state of a done sentence no longer changes, so results do not depend on the rest of the
    batch. Padding is never generated. Equal shapes, functions and searches compile once.

    Args:
        cache: consumed.
        lengths: number of tokens that fit in the cache, then the sizes to which it grows.
    """
    shared, self_cache = (
        {name: tree for name, tree in cache.items() if name != "self"},
        cache["self"],
    )
    position, length = 0, lengths[0]
    state = _start(search, sentences, length)
    while True:
        steps = min(max(_TOKENS_READ // (state.last_BxK.size * length), _STEPS[0]), _STEPS[1])
        stop = min(position + steps, length)
        # jnp.int32 would be a program.
        bounds = jax.device_put((np.int32(position), np.int32(stop)))
        state, self_cache, all_done = run_stage(
            step_fn, search, params, shared, sentences, *bounds, state, self_cache
        )
        position = stop
        if all_done:
            return _result(search, sentences, state)
        if position == length:
            length = next_length(length, lengths)
            state, self_cache = grow((state, self_cache), length)


def next_length(length: int, lengths: Sequence[int]) -> int:
    """Return the first of `lengths` above `length`.

    Beyond them, return the next multiple of the last.
    """
    return next((n for n in lengths if n > length), (length // lengths[-1] + 1) * lengths[-1])


@jax.jit(static_argnums=1)
def grow(tree: PyTree, length: int) -> PyTree:
    """Pad the time axes of a tree of caches and states with zeros to `length`."""

    def grow_leaf(path, x):
        if _is_cache(x):
            return x.grow(length)
        if x.ndim < 3 or jax.tree_util.DictKey("state") in path:
            return x
        return jnp.pad(x, [(0, length - n if axis == 2 else 0) for axis, n in enumerate(x.shape)])

    return jax.tree.map_with_path(grow_leaf, tree, is_leaf=_is_cache)


def _is_cache(x: PyTree) -> bool:
    return isinstance(x, DecodingCache)


@jax.jit(static_argnums=(0, 2))
def _start(search: Search, sentences: Sentences, length: int) -> PyTree:
    return by_rows(search.start(sentences, length))


def by_rows(tree: PyTree) -> PyTree:
    """Shard arrays [B, ...] by sentences within a program.

    XLA would replicate arrays that depend on no sharded input.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return tree

    def divide(x):
        free = [PartitionSpec.UNCONSTRAINED] * (x.ndim - 1)
        return jax.lax.with_sharding_constraint(x, PartitionSpec(*mesh_lib.ROWS, *free))

    return jax.tree.map(divide, tree)


@jax.jit(static_argnums=0)
def _result(search: Search, sentences: Sentences, state: PyTree) -> SearchResult:
    return search.result(sentences, state)


@jax.jit(static_argnums=(0, 1), donate_argnums=(7, 8))
def run_stage(step_fn, search, params, shared, sentences, position, stop, state, self_cache):
    """Decode from `position` until all sentences are done or have `stop` tokens.

    Returns (state, cache, whether all sentences are done). Arguments as in `run_search`; state and
    self_cache are donated.

    Args:
        stop: at most the number of tokens that fit in the cache.
    """

    def decode(params, shared, sentences, position, stop, state, self_cache):
        def not_done(carry):
            position, state, _ = carry
            return (position < stop) & ~jnp.all(state.done_B)

        def next_token(carry):
            position, state, self_cache = carry
            cache = shared | {"self": self_cache, "sentences": sentences}
            logits_BxKxV, cache = step_fn(params, state.last_BxK, position, cache)
            new, parents_BxK = search.advance(sentences, position, state, logits_BxKxV)
            self_cache = (
                cache["self"] if parents_BxK is None else _reorder(cache["self"], parents_BxK)
            )
            return position + 1, _keep_done(state, new), self_cache

        return jax.lax.while_loop(not_done, next_token, (position, state, self_cache))[1:]

    rows = _independent_rows()
    if rows is not None:
        specs = (PartitionSpec(), rows, rows, PartitionSpec(), PartitionSpec(), rows, rows)
        decode = jax.shard_map(decode, in_specs=specs, out_specs=(rows, rows), check_vma=False)
    state, self_cache = decode(params, shared, sentences, position, stop, state, self_cache)
    return state, self_cache, jnp.all(state.done_B)


def _independent_rows() -> PartitionSpec | None:
    """Return the sharding of rows on a mesh with only data parallelism, else None.

    Each device then runs its own loop, which ends when its own sentences are done. A loop over a
    global batch would wait for all devices at each token.
    """
    mesh = jax.sharding.get_abstract_mesh()
    sizes = {axis: size for axis, size in mesh.shape.items() if size > 1}
    return mesh_lib.ROWS if set(sizes) == {"data"} else None


def _reorder(self_cache: PyTree, parents_BxK: jax.Array) -> PyTree:
    pick = functools.partial(take, index_BxN=parents_BxK)
    return jax.tree.map(
        lambda x: x.reorder(pick) if _is_cache(x) else pick(x), self_cache, is_leaf=_is_cache
    )


def take(x_BxMx: jax.Array, index_BxN: jax.Array) -> jax.Array:
    """Return x [B, M, ...] at indices [B, N], as [B, N, ...]."""
    return jax.vmap(lambda x, index: x.at[index].get(mode="promise_in_bounds"))(x_BxMx, index_BxN)


def _keep_done(old: PyTree, new: PyTree) -> PyTree:
    def keep(a, b):
        return jnp.where(old.done_B.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return jax.tree.map(keep, old, new)


GROUPS = (64, 80, 96, 48, 112, 128)
"""Group sizes, multiples of a vector register.

The first that divides the axis is used, so that the axis' last part is not copied.
"""


def top_k(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Return the k largest values of the last axis, descending, and int32 indices.

    Ties go to the lower index. Equal to `jax.lax.top_k`, but searches only the k groups of
    neighbours with the largest maxima: any element outside them is exceeded by the maximum of each
    of these groups. Groups are visited in index order, which preserves the order of ties.
    """
    group = _group_of(x)
    groups, rest = _in_groups(x, group)
    count = groups.shape[-2]
    if count <= 2 * k:
        return jax.lax.top_k(x, k)
    best = jnp.sort(jax.lax.top_k(jnp.max(groups, axis=-1), k)[1], axis=-1)
    values = jnp.take_along_axis(groups, best[..., None], axis=-2).reshape(*x.shape[:-1], k * group)
    index = (best[..., None] * group + jnp.arange(group)).reshape(values.shape)
    tail = jnp.broadcast_to(jnp.arange(count * group, x.shape[-1]), rest.shape)
    values, index = jnp.concatenate([values, rest], -1), jnp.concatenate([index, tail], -1)
    values, chosen = jax.lax.top_k(values, k)
    return values, jnp.take_along_axis(index, chosen, axis=-1).astype(jnp.int32)


def log_sum_exp(x: jax.Array) -> jax.Array:
    """Return log(sum(exp(x))) over the last axis, kept with size 1, in x's type.

    Finite for finite x.
    """
    group = _group_of(x)
    groups, rest = _in_groups(x, group)
    if x.shape[-1] < group:
        return jax.nn.logsumexp(x, axis=-1, keepdims=True)
    largest = jnp.max(jnp.max(groups, axis=-1), axis=-1, keepdims=True)
    if rest.shape[-1]:
        largest = jnp.maximum(largest, jnp.max(rest, axis=-1, keepdims=True))
    sums = jnp.sum(jnp.exp(groups - largest[..., None]), axis=-1)
    total = jnp.sum(sums, axis=-1, keepdims=True) + jnp.sum(
        jnp.exp(rest - largest), axis=-1, keepdims=True
    )
    return jnp.log(total) + largest


def _group_of(x: jax.Array) -> int:
    return next((group for group in GROUPS if x.shape[-1] % group == 0), GROUPS[0])


def _in_groups(x: jax.Array, group: int) -> tuple[jax.Array, jax.Array]:
    """Split [..., V] into groups [..., V // group, group] and rest [..., V % group]."""
    whole = x.shape[-1] // group * group
    return x[..., :whole].reshape(*x.shape[:-1], whole // group, group), x[..., whole:]
