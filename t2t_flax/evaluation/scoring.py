"""Forced decoding: log-probabilities of given target sentences."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.decoding.batches import SOURCE_LENGTHS, padded, round_up
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.distributed.mesh import Params
from t2t_flax.models.transformer import Transformer

_WHOLE_BATCH = 256
"""Tokens per side up to which `pair_batches` uses the whole batch size.

Longer pairs are in smaller batches.
"""

_LOGITS_TOKENS = 512
"""Tokens whose logits exist at once.

Logits of a whole batch would take most of the memory.
"""


@dataclasses.dataclass(frozen=True)
class PairScore:
    """Log-probability in nats of a target given its source, in all and for each token.

    The last token is EOS.
    """

    tokens: tuple[str, ...]
    token_log_probs: tuple[float, ...]

    @property
    def log_prob(self) -> float:
        return float(np.sum(self.token_log_probs))

    @property
    def per_token(self) -> float:
        return self.log_prob / len(self.token_log_probs)


@dataclasses.dataclass(frozen=True)
class PairIds:
    """Token ids of a pair.

    The target ends with EOS, and the source too if the run appends it.
    """

    source: list[int]
    target: list[int]


def pair_log_probs(
    model: Transformer,
    params: Params,
    mesh: jax.sharding.Mesh,
    pairs: Sequence[PairIds],
    batch_size: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[np.ndarray]:
    """Return the log-probability of each target token, float32 [T] for each pair in order.

    They do not depend on the rest of the batch.

    Args:
        batch_size: see `pair_batches`.
        progress: called after each batch with (pairs done, total).
    """
    log_probs: dict[int, np.ndarray] = {}
    for chunk, batch in pair_batches(pairs, batch_size, mesh):
        with mesh_lib.use(mesh):
            log_probs_BxT = np.asarray(_token_log_probs(model, params, batch))
        for i, row in zip(chunk, log_probs_BxT, strict=False):
            log_probs[i] = row[: len(pairs[i].target)]
        if progress:
            progress(len(log_probs), len(pairs))
    return [log_probs[i] for i in range(len(pairs))]


def pair_batches(
    pairs: Sequence[PairIds], batch_size: int, mesh: jax.sharding.Mesh
) -> Iterator[tuple[list[int], dict[str, jax.Array]]]:
    """Yield (numbers of pairs, batch of model inputs), shortest pairs first.

    A batch has one pair per row. Pairs with more than 256 tokens are in smaller batches, so that
    the memory of attention stays constant until each shard has one row.

    Args:
        batch_size: pairs on each shard, see config.decode.batch_size.
    """
    shards = mesh_lib.batch_shards(mesh)
    longest = [max(len(pair.source), len(pair.target)) for pair in pairs]
    put = functools.partial(jax.device_put, device=mesh_lib.named(mesh, mesh_lib.ROWS))
    order = sorted(range(len(pairs)), key=longest.__getitem__)
    for length, group in itertools.groupby(
        order, key=lambda i: round_up(longest[i], SOURCE_LENGTHS)
    ):
        members = list(group)
        rows = shards * max(1, min(batch_size, batch_size * _WHOLE_BATCH**2 // length**2))
        for start in range(0, len(members), rows):
            chunk = members[start : start + rows]
            yield chunk, jax.tree.map(put, rows_of([pairs[i] for i in chunk], rows, length))


def rows_of(
    pairs: Sequence[PairIds], rows: int, length: int | None = None
) -> dict[str, np.ndarray]:
    """Return a model batch of arrays int32 [rows, length] with one pair per row.

    Args:
        length: default the smallest of `SOURCE_LENGTHS` that fits all pairs.
    """
    length = length or round_up(
        max(max(len(p.source), len(p.target)) for p in pairs), SOURCE_LENGTHS
    )
    arrays = {}
    for side in ("source", "target"):
        ids = padded([getattr(p, side) for p in pairs], rows, length)
        arrays[side] = ids
        arrays[f"{side}_segments"] = (ids > 0).astype(np.int32)
        arrays[f"{side}_positions"] = np.where(ids > 0, np.arange(length, dtype=np.int32), 0)
    return arrays


@jax.jit(static_argnums=0)
def _token_log_probs(model: Transformer, params, batch):
    """Return the log-probability of each target token, float32 [B, T]."""
    hidden_BxTxD: Any = model.apply({"params": params}, batch, method="hidden")

    def at_position(hidden_and_target):
        hidden_BxD, target_B = hidden_and_target
        logits_BxV: Any = model.apply({"params": params}, hidden_BxD, method="logits")
        target_logit_B = jnp.take_along_axis(logits_BxV, target_B[:, None], axis=-1)[:, 0]
        return target_logit_B - jax.nn.logsumexp(logits_BxV, axis=-1)

    positions = max(1, _LOGITS_TOKENS // len(hidden_BxTxD))
    by_position = jnp.moveaxis(hidden_BxTxD, 1, 0), batch["target"].T
    return jax.lax.map(at_position, by_position, batch_size=positions).T
