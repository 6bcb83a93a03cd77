"""Multi-head attention (3.2): over any memory, and self-attention as the mixer of a layer.

Scores and softmax are float32 whatever the compute type. A new kind of score is a row of SCORES.

Letters: B batch, K beam, T queries, S keys, D d_model, N heads, G heads of keys and values, H width
of a head.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t2t_flax.config import Model
from t2t_flax.models.dense import Einsum
from t2t_flax.models.dropout import Dropout, Noise
from t2t_flax.models.local_attention import banded_attention, saves_work
from t2t_flax.models.masks import SegmentMask, mask_array, masked_softmax, window_mask
from t2t_flax.models.mixer_inputs import MixerInputs
from t2t_flax.models.positions import PositionBias, PositionRotation
from t2t_flax.models.products import product_with_float32_result
from t2t_flax.models.slots import SHARED_BEAMS, Slots, decoding_layout, from_decoding_layout
from t2t_flax.registry import ATTENTION_KERNELS

Mask = jax.Array | SegmentMask  # an array is bool, True = may attend


class DotScore(nn.Module):
    """Q K^T, divided by sqrt(d_k) if `scaled` (3.2.1). q [..., T, N, H], k [..., S, N, H] -> float32 [..., N, T, S]."""

    scaled: bool

    def __call__(self, q: jax.Array, k: jax.Array) -> jax.Array:
        scores = product_with_float32_result("...tnh,...snh->...nts", q, k, q.dtype)
        return scores * q.shape[-1] ** -0.5 if self.scaled else scores


class AdditiveScore(nn.Module):
    """v^T tanh(q + k) in each head; slower and larger than products, as 3.2.1 says. Axes as in `DotScore`.

    q and k are projections already: the network of Bahdanau et al. with its first matrix cut in two.
    """

    @nn.compact
    def __call__(self, q: jax.Array, k: jax.Array) -> jax.Array:
        init = nn.initializers.variance_scaling(1.0, "fan_in", "uniform", in_axis=1, out_axis=0)
        v = self.param("v", nn.with_logical_partitioning(init, ("heads", "kv")), q.shape[-2:], jnp.float32)
        hidden = jnp.tanh(q[..., :, None, :, :] + k[..., None, :, :, :])  # [..., T, S, N, H]
        return product_with_float32_result("...tsnh,nh->...nts", hidden, v, hidden.dtype)


SCORES = {
    "scaled_dot": lambda: DotScore(scaled=True),
    "dot": lambda: DotScore(scaled=False),
    "additive": lambda: AdditiveScore(),
}


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W_O with head_i = Attention(Q W_Q, K W_K, V W_V) (3.2.2); no biases by default.

    With model.num_kv_heads each head of keys and values serves N / G heads of queries that follow each other.
    """

    config: Model
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        c = self.config
        d_k, d_v = c.head_widths
        gain = 0.5**0.5 if c.kernel_init == "xavier_qkv_rsqrt2" else 1.0

        def project(heads, width):
            # With fewer heads than the queries have, keys and values get an axis of their own in mesh.rules.
            shape, axis = (c.d_model, heads, width), "heads" if heads == c.num_heads else "kv_heads"
            axes = dict(in_axis=(0,), out_axis=(1, 2), use_bias=c.attention_bias, gain=gain, dtype=self.dtype)
            return Einsum("...d,dnh->...nh", shape, ("embed", axis, "kv"), **axes)

        self.query = project(c.num_heads, d_k)
        self.key, self.value = project(c.key_heads, d_k), project(c.key_heads, d_v)
        self.score = SCORES[c.attention_score]()
        shape, names = (c.num_heads, d_v, c.d_model), ("heads", "kv", "embed")
        axes = dict(in_axis=(0, 1), out_axis=(2,))
        self.out = Einsum("...nh,nhd->...d", shape, names, **axes, use_bias=c.attention_bias, dtype=self.dtype)
        self.weight_dropout = Dropout(c.dropout_attention)

    def __call__(self, x_BxTxD: jax.Array, memory_BxSxD: jax.Array, mask: Mask, noise: Noise | None) -> jax.Array:
        """[B, T, D] queries over [B, S, D] memory under a mask [B, 1, T, S] -> [B, T, D]."""
        return self.over(x_BxTxD, *self.keys_values(memory_BxSxD), mask, noise)

    def keys_values(self, memory: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[..., D] -> keys [..., G, d_k], values [..., G, d_v]."""
        return self.key(memory), self.value(memory)

    def over(self, x_BxTxD, k_BxSxGxH, v_BxSxGxH, mask: Mask, noise: Noise | None = None) -> jax.Array:
        """As `__call__`, over keys and values that are computed already. In decoding T is the beam."""
        return self.out(self.attend(self.query(x_BxTxD), k_BxSxGxH, v_BxSxGxH, mask, noise=noise))

    def attend(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        mask: Mask,
        *,
        bias: jax.Array | None = None,
        noise: Noise | None = None,
    ) -> jax.Array:
        """softmax(score(q, k) + bias) v: q [..., T, N, d_k], k and v [..., S, G, width] -> [..., T, N, d_v].

        `mask` and `bias` broadcast to [..., N, T, S]. The weights are sown as the intermediate "weights".
        """
        kernel = self._fused_kernel(noise) if bias is None else None
        if kernel and kernel.takes(q, k, v, mask):
            return kernel.attend(q, k, v, mask, scaled=self.config.attention_score == "scaled_dot")
        groups, queries = q.shape[-2] // k.shape[-2], q.shape[-3]
        scores = self.score(_join_groups(q, groups), k)
        scores = scores.reshape(*scores.shape[:-3], q.shape[-2], queries, scores.shape[-1])
        weights = masked_softmax(scores if bias is None else scores + bias, mask_array(mask))
        self.sow("intermediates", "weights", weights)
        weights = self.weight_dropout(weights.astype(self.dtype), noise)
        weights = weights.reshape(*weights.shape[:-3], k.shape[-2], groups * queries, weights.shape[-1])
        context = jnp.moveaxis(jnp.einsum("...nts,...snh->...nth", weights, v), -2, -3)
        return _split_groups(context, groups)

    def _fused_kernel(self, noise: Noise | None) -> Any:
        """The module of a kernel (`registry.ATTENTION_KERNELS`); None where scores are no product, or weights must exist: to be
        collected or dropped.
        """
        c = self.config
        # Not >: vectorized runs have a `Rate`, and no kernel.
        dropped = noise is not None and c.dropout_attention != 0.0
        weights_needed = dropped or self.is_mutable_collection("intermediates")
        if c.attention_kernel == "einsum" or c.attention_score == "additive" or weights_needed:
            return None
        return ATTENTION_KERNELS.load(c.attention_kernel)

    @staticmethod
    def multiply_adds(config: Model, queries: float, keys: float, pairs: float) -> float:
        """Of `queries` over `keys` tokens, `pairs` of which are compared, with the four projections."""
        d_k, d_v = config.head_widths
        of_queries = (queries * config.d_model + pairs) * config.num_heads
        return (of_queries + keys * config.d_model * config.key_heads) * (d_k + d_v)


def _join_groups(q: jax.Array, groups: int) -> jax.Array:
    """[..., T, N, H] -> [..., groups * T, N / groups, H]: the queries of heads that share a key, as one head's."""
    if groups == 1:
        return q
    *batch, length, heads, width = q.shape
    q = jnp.moveaxis(q.reshape(*batch, length, heads // groups, groups, width), -2, -4)
    return q.reshape(*batch, groups * length, heads // groups, width)


def _split_groups(x: jax.Array, groups: int) -> jax.Array:
    """The inverse of `_join_groups`."""
    if groups == 1:
        return x
    *batch, length, heads, width = x.shape
    x = jnp.moveaxis(x.reshape(*batch, groups, length // groups, heads, width), -4, -2)
    return x.reshape(*batch, length // groups, heads * groups, width)


class SelfAttention(MultiHeadAttention):
    """The mixer `attention`: within segments, in the decoder up to itself.

    With model.attention_window = r a position sees those with |i - j| <= (r - 1) / 2.
    """

    causal: bool = False
    depth: int = 0

    def setup(self):
        super().setup()
        self.rotation, self.position_bias = PositionRotation(self.config), PositionBias(self.config)

    def __call__(self, x_BxTxD: jax.Array, inputs: MixerInputs) -> jax.Array:
        """[B, T, D] -> [B, T, D]. A window is computed in bands, except where short rows or weights that are
        collected (`intermediates`) take the whole matrix.
        """
        length = x_BxTxD.shape[1]
        reach = self._reach(length)
        k, v = self.keys_values(x_BxTxD)
        q, k = (self.rotation(y, inputs.positions) for y in (self.query(x_BxTxD), k))

        def attend(q, k, v, mask, query_positions, key_positions):
            bias = self.position_bias(query_positions, key_positions)
            return self.attend(q, k, v, mask, bias=bias, noise=inputs.noise)

        if saves_work(reach, length, causal=self.causal) and not self.is_mutable_collection("intermediates"):
            rows = (q, k, v, inputs.segments, inputs.positions)
            return self.out(banded_attention(attend, *rows, reach=reach, causal=self.causal))
        mask = SegmentMask(inputs.segments, inputs.segments, self.causal)
        mask = mask_array(mask) & window_mask(length, reach) if reach < length - 1 else mask
        return self.out(attend(q, k, v, mask, inputs.positions, inputs.positions))

    def empty_cache(self, batch: int, beams: int, length: int) -> dict[str, Any]:
        """To be filled by `step`: the `Slots` of keys and values, and with shared ones ancestors [B, K, T], the beam in whose
        slot a hypothesis finds its own. Reordering the hypotheses then moves these alone.
        """
        heads, (d_k, d_v) = self.config.key_heads, self.config.head_widths
        rows, width = ((batch,), beams) if 1 < beams <= SHARED_BEAMS else ((batch, beams), 1)
        cache = {
            "key": Slots(jnp.zeros((*rows, heads, d_k, length * width), self.dtype), -1, width),
            "value": Slots(jnp.zeros((*rows, heads, length * width, d_v), self.dtype), -2, width),
        }
        return cache | ({"ancestors": jnp.zeros((batch, beams, length), jnp.int32)} if width > 1 else {})

    def step(self, x_BxKxD: jax.Array, cache: dict[str, Any], position: jax.Array):
        """One decoding step: writes the keys and values at `position` and attends up to it.

        Beams that share slots attend together, each masked to its own: products over the cache as it lies in memory.
        Returns ([B, K, D], the new cache).
        """
        slots = cache["key"]
        # The queries of a row of slots: those of all beams, or one.
        x = x_BxKxD if slots.shared else x_BxKxD[:, :, None]
        here, positions_T = jnp.full(slots.beams, position), jnp.arange(slots.length)
        k, v = self.keys_values(x)
        q, k = (self.rotation(y, here) for y in (self.query(x), k))
        new_key, new_value = decoding_layout(k, v)
        cache = cache | {"key": slots.write(new_key, position), "value": cache["value"].write(new_value, position)}
        mask = (positions_T <= position) & (positions_T >= position - self._reach(slots.length))
        if slots.shared:
            batch, beams, length = cache["ancestors"].shape
            own_BxKx1 = jnp.broadcast_to(jnp.arange(beams)[:, None], (batch, beams, 1))
            ancestors_BxKxT = jax.lax.dynamic_update_slice_in_dim(cache["ancestors"], own_BxKx1, position, axis=2)
            mask_BxKxTxK = (ancestors_BxKxT[..., None] == jnp.arange(beams)) & mask[:, None]
            mask = mask_BxKxTxK.reshape(batch, 1, beams, length * beams)
            cache = cache | {"ancestors": ancestors_BxKxT}
        bias = self.position_bias(here, jnp.repeat(positions_T, slots.beams))
        out = self.attend(q, *from_decoding_layout(cache["key"].array, cache["value"].array), mask, bias=bias)
        return (self.out(out) if slots.shared else self.out(out)[:, :, 0]), cache

    def _reach(self, length: int) -> int:
        return (self.config.attention_window - 1) // 2 if self.config.attention_window else length

    @staticmethod
    def multiply_adds(config: Model, tokens: float, pairs: float, *, causal: bool) -> float:
        """4nd^2 + 2n^2 d of n tokens with d_k = d_v = d / h (Table 1), n r in place of n^2 with a window of r.

        `pairs`: of tokens that could see each other. A masked product is computed too, so `causal` saves nothing.
        """
        if config.attention_window:
            pairs = min(pairs, tokens * config.attention_window)
        return MultiHeadAttention.multiply_adds(config, tokens, tokens, pairs)
