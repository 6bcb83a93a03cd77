"""Token embeddings and output logits (3.4), decoder start, and positions (3.5)."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.config import Model
from t2t_flax.config.data_keys import EOS
from t2t_flax.models.dense import product_with_float32_result
from t2t_flax.registry import POSITIONS

INITS = {
    "normal_rsqrt_d": lambda d_model: nn.initializers.normal(d_model**-0.5),
    "normal_1": lambda d_model: nn.initializers.normal(1.0),
    "xavier": lambda d_model: nn.initializers.xavier_uniform(),
}


class Embedding(nn.Module):
    """Embedding table [rows, d_model].

    By default lookups are scaled by sqrt(d_model) and logits are not (3.4).
    """

    config: Model
    rows: int
    dtype: jnp.dtype = jnp.dtype("float32")

    def setup(self):
        init = nn.with_logical_partitioning(
            INITS[self.config.embed_init](self.config.d_model), ("vocab", "table")
        )
        self.table: Any = self.param("table", init, (self.rows, self.config.d_model), jnp.float32)

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Embed int32 ids [...] as [..., D] in the compute type."""
        return scale(lookup(self.table, ids, self.dtype), self.config)

    def logits(self, x: jax.Array) -> jax.Array:
        """Project x [..., D] with the table to float32 logits [..., rows]."""
        logits = product_with_float32_result("...d,vd->...v", x, self.table, self.dtype)
        return (
            logits * self.config.d_model**-0.5 if self.config.logit_scale == "rsqrt_d" else logits
        )


def scale(x: jax.Array, config: Model) -> jax.Array:
    """Return x, times sqrt(d_model) if the config scales embeddings (3.4)."""
    return x * jnp.asarray(config.d_model**0.5, x.dtype) if config.embed_scale == "sqrt_d" else x


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def lookup(table_VxD: jax.Array, ids: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Return rows [..., D] of a table for ids [...], in `dtype`.

    Ids beyond the table give NaN. On GPUs XLA would add the cotangents of equal ids in any order.
    There `sum_rows` fixes the order, so two runs of a program give the same bits.
    """
    return _rows(table_VxD, ids, dtype)


def _rows(table_VxD, ids, dtype):
    return jnp.take(table_VxD, ids, axis=0, mode="fill", fill_value=jnp.nan).astype(dtype)


def _lookup_forward(table_VxD, ids, dtype):
    return _rows(table_VxD, ids, dtype), (table_VxD, ids)


def _lookup_backward(dtype, operands, cotangent):
    table_VxD, ids = operands

    def transposed(cotangent, ids):
        return jax.linear_transpose(lambda table: _rows(table, ids, dtype), table_VxD)(cotangent)[0]

    def ordered(cotangent, ids):
        return sum_rows(cotangent.reshape(-1, cotangent.shape[-1]), ids.reshape(-1), len(table_VxD))

    return jax.lax.platform_dependent(
        cotangent, ids, cuda=ordered, rocm=ordered, default=transposed
    ), None


lookup.defvjp(_lookup_forward, _lookup_backward)

_BLOCK = 128


def sum_rows(x_NxD: jax.Array, ids_N: jax.Array, rows: int) -> jax.Array:
    """Sum the vectors with each id in a fixed order, as float32 [rows, D].

    Ids beyond the rows are dropped. Vectors are sorted by id and cut into blocks, and a matrix
    product sums the vectors of each id in its block. An id that continues in later blocks gets
    their sums where it starts, and only there is its row written.
    """
    order = jnp.argsort(ids_N)
    padding = -len(order) % _BLOCK
    ids_CxB = jnp.pad(ids_N[order], (0, padding), constant_values=rows).reshape(-1, _BLOCK)
    x_CxBxD = jnp.pad(x_NxD[order], ((0, padding), (0, 0))).reshape(*ids_CxB.shape, -1)
    same_CxBxB = (ids_CxB[:, :, None] == ids_CxB[:, None, :]).astype(x_NxD.dtype)
    exact: Any = dict(precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32)
    sums_CxBxD = jnp.einsum("cij,cjd->cid", same_CxBxB, x_CxBxD, **exact)
    first_C, last_C, block_C = ids_CxB[:, 0], ids_CxB[:, -1], jnp.arange(len(ids_CxB))
    goes_on_CxC = (last_C[:, None] == first_C) & (block_C[:, None] < block_C)
    later_CxD = jnp.where(goes_on_CxC[..., None], sums_CxBxD[:, 0], 0.0).sum(1)
    sums_CxBxD += jnp.where((ids_CxB == last_C[:, None])[..., None], later_CxD[:, None], 0.0)
    ids = ids_CxB.reshape(-1)
    starts = jnp.diff(ids, prepend=-1) > 0
    written = jnp.where(starts, ids, rows + jnp.arange(len(ids)))
    zeros = jnp.zeros((rows, x_NxD.shape[-1]), jnp.float32)
    return zeros.at[written].set(sums_CxBxD.reshape(len(ids), -1), mode="drop", unique_indices=True)


class DecoderStart(nn.Module):
    """Start vector [D] of the decoder.

    It is zeros (tensor2tensor), a table row, or a parameter.
    """

    config: Model
    dtype: jnp.dtype = jnp.dtype("float32")

    @nn.compact
    def __call__(self, embedding: Embedding) -> jax.Array:
        kind, d_model = self.config.decoder_start_token, self.config.d_model
        if kind == "bos":
            init = nn.with_logical_partitioning(nn.initializers.normal(d_model**-0.5), ("table",))
            start: Any = self.param("bos", init, (d_model,), jnp.float32)
            return scale(start.astype(self.dtype), self.config)
        if kind == "zeros":
            return jnp.zeros((d_model,), self.dtype)
        return embedding(jnp.asarray({"eos": EOS, "pad": 0}[kind]))


class PositionScheme(NamedTuple):
    """Functions of a position scheme; None where the scheme has no such part.

    Args:
        vectors: `vectors(module, position)` maps int32 [...] to [..., D], added to the embeddings.
            Positions in rows [..., T] are below T.
        rotate: `rotate(module, x, position)` turns queries or keys of self-attention
            [..., T, N, H] at positions [..., T].
        bias: `bias(module, query_position, key_position)` maps int32 [..., T] and [..., S] to
            float32 [..., N, T, S], added to the scores of self-attention.
    """

    vectors: Callable[[nn.Module, jax.Array], jax.Array] | None = None
    rotate: Callable[[nn.Module, jax.Array, jax.Array], jax.Array] | None = None
    bias: Callable[[nn.Module, jax.Array, jax.Array], jax.Array] | None = None


def sinusoid_interleaved(position: jax.Array | np.ndarray, d_model: int) -> jax.Array:
    """Return the paper's sinusoids (3.5), float32 [..., D], of int32 positions [...].

    PE[pos, 2i] = sin(pos / 10000^(2i/d)), PE[pos, 2i+1] = cos.
    """
    inverse = 10000.0 ** (-np.arange(0, d_model, 2) / d_model)
    angle = position[..., None].astype(jnp.float32) * inverse.astype(np.float32)
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(*position.shape, d_model)


def sinusoid_halves(position: jax.Array | np.ndarray, d_model: int) -> jax.Array:
    """Return tensor2tensor's sinusoids, float32 [..., D], of int32 positions [...].

    All sines, then all cosines, with exponents i / (d/2 - 1).
    """
    half = d_model // 2
    inverse = 10000.0 ** (-np.arange(half) / max(half - 1, 1))
    angle = position[..., None].astype(jnp.float32) * inverse.astype(np.float32)
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


def _fixed(vectors: Callable[[jax.Array, int], jax.Array]) -> PositionScheme:
    def shifted(module, position):
        offset, d_model = module.config.position_offset, module.config.d_model
        if position.ndim < 2:
            return vectors(position + offset, d_model)
        # Computes sines once for each position of a row [..., T], all below T, not for each token.
        table = vectors(jnp.arange(position.shape[-1]) + offset, d_model)
        return jnp.take(table, position, axis=0, mode="fill", fill_value=jnp.nan)

    return PositionScheme(vectors=shifted)


def learned(module: nn.Module, position: jax.Array) -> jax.Array:
    """Return a trained row for each position (Table 3, row E).

    Positions from max_positions on give NaN instead of JAX's clamped index.
    """
    c = module.config
    init = nn.with_logical_partitioning(
        nn.initializers.normal(c.d_model**-0.5), ("position", "table")
    )
    table: Any = module.param("table", init, (c.max_positions, c.d_model), jnp.float32)
    return lookup(table, position, module.dtype)


SINUSOID_INTERLEAVED, SINUSOID_HALVES = _fixed(sinusoid_interleaved), _fixed(sinusoid_halves)
LEARNED, NONE = PositionScheme(vectors=learned), PositionScheme()


class PositionVectors(nn.Module):
    """Map int32 positions [...] to vectors [..., D] added to the embeddings, or to 0."""

    config: Model
    dtype: jnp.dtype = jnp.dtype("float32")

    @nn.compact
    def __call__(self, position: jax.Array) -> jax.Array:
        vectors = POSITIONS.load(self.config.position).vectors
        return (
            vectors(self, position).astype(self.dtype)
            if vectors
            else jnp.zeros((*position.shape, 1), self.dtype)
        )


class PositionBias(nn.Module):
    """Map int32 positions [..., T] and [..., S] to the scheme's score bias, or None.

    The bias is float32 [..., N, T, S].
    """

    config: Model

    @nn.compact
    def __call__(self, query_position: jax.Array, key_position: jax.Array) -> jax.Array | None:
        bias = POSITIONS.load(self.config.position).bias
        return bias(self, query_position, key_position) if bias else None


class PositionRotation(nn.Module):
    """Rotate queries or keys [..., T, N, H] at positions [..., T], if the scheme does."""

    config: Model

    @nn.compact
    def __call__(self, x: jax.Array, position: jax.Array) -> jax.Array:
        rotate = POSITIONS.load(self.config.position).rotate
        return rotate(self, x, position) if rotate else x
