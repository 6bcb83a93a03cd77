"""One stack of layers for source and target: the prefix language model of Raffel et al. 2020 (section 3.2.1), or, with causal
attention over the source, a language model of the source followed by the target.

The source is a prefix: the same layers are applied to it first, and the target attends to their keys and values, and to itself
up to each position. Positions go on from the end of the source. Only target tokens are predicted.

Letters: as in `models.transformer`; P the length of a prefix.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from t2t_flax.config import Model
from t2t_flax.extensions.decoder_only import DecoderOnly
from t2t_flax.models.attention import (
    Mask,
    MixerInputs,
    SegmentMask,
    SelfAttention,
    mask_array,
    masked_softmax,
    scores_of_groups,
    weighted_values,
)
from t2t_flax.models.decoding_cache import DecodingCache, decoding_layout, from_decoding_layout
from t2t_flax.models.dense import make_norm
from t2t_flax.models.dropout import Dropout, Noise
from t2t_flax.models.embeddings import DecoderStart, Embedding, PositionVectors
from t2t_flax.models.layers import Residual, make_feed_forward
from t2t_flax.models.transformer import REMAT, Transformer, constrain, make_output_bias, products, table_rows

_SOURCE_NOISE = np.uint32(0x2545F491)
"""Source and target pass through the same modules; their dropout masks must differ."""


@flax.struct.dataclass
class Keys:
    """key [..., S, G, d_k], value [..., S, G, d_v], and the mask of the queries over them."""

    key: jax.Array
    value: jax.Array
    mask: Any


class PrefixAttention(SelfAttention):
    """Self-attention that attends to a prefix, too."""

    def over_row(self, x: jax.Array, inputs: MixerInputs, mask: Mask, prefix: Keys | None) -> tuple[jax.Array, Any]:
        """[B, T, D] -> ([B, T, D], its keys and values). mask: of the row over itself."""
        k, v = self.keys_values(x)
        parts = [Keys(k, v, mask), *([] if prefix is None else [prefix])]
        return self.out(self.attend_parts(self.query(x), parts, inputs.noise)), (k, v)

    def next(self, x_BxKxD: jax.Array, cache: DecodingCache, prefix: Keys, position: jax.Array):
        """See `SelfAttention.step`. prefix: of each sentence, shared by its hypotheses; mask bool [B, P]."""
        x = cache.rows(x_BxKxD)
        cache = cache.write(*self.keys_values(x), position)
        mask = cache.mask(self.visible(position[..., None], jnp.arange(cache.length)))
        if x.ndim > x_BxKxD.ndim:  # [B, K, 1, D]: each hypothesis has slots of its own
            prefix = jax.tree.map(lambda y: y[:, None], prefix)
        prefix = prefix.replace(mask=prefix.mask[..., None, None, :])
        out = self.attend_parts(self.query(x), [Keys(*cache.keys_values(), mask), prefix], None)
        return cache.hypotheses(self.out(out)), cache

    def attend_parts(self, q: jax.Array, parts: Sequence[Keys], noise: Noise | None) -> jax.Array:
        """Attention over all keys together: one softmax, without a copy of the keys in one array."""
        if len(parts) == 1:
            return self.attend(q, parts[0].key, parts[0].value, parts[0].mask, noise=noise)
        scores = [scores_of_groups(self.score, q, part.key) for part in parts]
        masks = [jnp.broadcast_to(mask_array(part.mask), one.shape) for part, one in zip(parts, scores, strict=True)]
        weights = masked_softmax(jnp.concatenate(scores, axis=-1), jnp.concatenate(masks, axis=-1))
        weights = self.weight_dropout(weights.astype(self.dtype), noise)
        ends = np.cumsum([one.shape[-1] for one in scores])[:-1]
        pairs = zip(jnp.split(weights, ends, axis=-1), parts, strict=True)
        return sum(weighted_values(own, part.value) for own, part in pairs)  # type: ignore[return-value]


class DecoderOnlyLayer(nn.Module):
    """Two sub-layers: self-attention over the prefix and the row, and feed-forward."""

    config: Model
    dtype: jnp.dtype
    depth: int

    def setup(self):
        c = self.config
        self.mixer = PrefixAttention(c, self.dtype, True, self.depth, name=PrefixAttention.NAME)
        self.feed_forward = make_feed_forward(c, self.dtype)
        self.residual_attention, self.residual_ffn = Residual(c, self.dtype), Residual(c, self.dtype)

    def __call__(self, x: jax.Array, inputs: MixerInputs, mask: Mask, prefix: Keys | None) -> tuple[jax.Array, Any]:
        """[B, T, D] -> ([B, T, D], keys and values of its attention)."""
        return self._layer(x, lambda y: self.mixer.over_row(y, inputs, mask, prefix), inputs.noise)

    def step(self, x_BxKxD: jax.Array, cache: DecodingCache, prefix: Keys, position: jax.Array):
        """One decoding step: ([B, K, D], the new cache)."""
        return self._layer(x_BxKxD, lambda y: self.mixer.next(y, cache, prefix, position), None)

    def _layer(self, x, attention, noise):
        more = None

        def sublayer(y):
            nonlocal more
            out, more = attention(y)
            return out

        x = self.residual_attention(x, sublayer, noise)
        return self.residual_ffn(x, lambda y: self.feed_forward(y, noise), noise), more


class DecoderOnlyTransformer(Transformer):
    """A `Transformer` of model.num_decoder_layers layers and one table; what `encode` returns are the keys and values of each
    layer.
    """

    def setup(self):
        c = self.config
        rows = table_rows(c, self.target_vocab)
        self.shared_embedding = self.output_embedding = Embedding(c, rows, dtype=self.dtype)
        if c.output_bias:
            self.output_bias = make_output_bias(self, rows)
        self.positions, self.decoder_start_token = PositionVectors(c, self.dtype), DecoderStart(c, self.dtype)
        layer = DecoderOnlyLayer
        if self.remat != "none":
            layer = nn.remat(layer, policy=REMAT[self.remat], methods=["__call__"])
        self.decoder = [layer(c, self.dtype, i) for i in range(c.num_decoder_layers)]
        if self.final_norm:
            self.decoder_norm = make_norm(c, self.dtype)
        self.dropout = Dropout(c.dropout)

    def encode(self, source_BxS, segments_BxS, positions_BxS, noise: Noise | None = None) -> Any:
        """(keys [B, S, G, d_k], values [B, S, G, d_v]) of each layer."""
        with products(self.matmul_precision):
            noise = noise and noise.replace(key=noise.key ^ _SOURCE_NOISE)
            x = constrain(self.dropout(self.shared_embedding(source_BxS) + self.positions(positions_BxS), noise))
            mask = SegmentMask(segments_BxS, segments_BxS, DecoderOnly.of(self.config).source_attention == "causal")
            memory = []
            for layer in self.decoder:
                x, keys = layer(x, MixerInputs(segments_BxS, positions_BxS, noise), mask, None)
                x = constrain(x)
                memory.append(keys)
            return memory

    def decode(self, memory: Any, batch: dict[str, jax.Array], noise: Noise | None = None) -> jax.Array:
        """Output [B, T, D] for known targets, shifted right in each segment."""
        with products(self.matmul_precision):
            embedding, position, segments = self.shared_embedding, batch["target_positions"], batch["target_segments"]
            of_source = batch["source_segments"]
            lengths_BxT = jnp.sum(segments[:, :, None] == of_source[:, None], axis=-1)
            shifted = jnp.pad(embedding(batch["target"]), ((0, 0), (1, 0), (0, 0)))[:, :-1]
            x = jnp.where((position == 0)[..., None], self.decoder_start_token(embedding), shifted)
            x = constrain(self.dropout(x + self._vectors(position + lengths_BxT), noise))
            mask, over_source = SegmentMask(segments, segments, True), SegmentMask(segments, of_source)
            for layer, keys in zip(self.decoder, memory, strict=True):
                x = constrain(layer(x, MixerInputs(segments, position, noise), mask, Keys(*keys, over_source))[0])
            return self.decoder_norm(x) if self.final_norm else x

    def _vectors(self, position: jax.Array) -> jax.Array:
        """The vectors [..., D] of positions [...] that are not bounded by the length of a row."""
        return self.positions(position.ravel()).reshape(*position.shape, -1)

    def start_cache(self, source_BxS: jax.Array, beam_size: int, length: int) -> dict[str, Any]:
        """See `Transformer.start_cache`."""
        mask_BxS = source_BxS > 0
        positions_BxS = jnp.where(mask_BxS, jnp.arange(source_BxS.shape[1]), 0)
        memory = self.encode(source_BxS, mask_BxS.astype(jnp.int32), positions_BxS)
        own = [layer.mixer.empty_cache(len(source_BxS), beam_size, length) for layer in self.decoder]
        return {"self": own, "cross": {"layers": [decoding_layout(*keys) for keys in memory], "mask": mask_BxS}}

    def decode_step(self, tokens_BxK: jax.Array, position: jax.Array, cache: dict[str, Any]):
        """See `Transformer.decode_step`."""
        with products(self.matmul_precision):
            embedding, mask_BxS = self.shared_embedding, cache["cross"]["mask"]
            start = (position == 0)[..., None]
            x_BxKxD = jnp.where(start, self.decoder_start_token(embedding), embedding(tokens_BxK))
            x_BxKxD += self._vectors(position + mask_BxS.sum(axis=1, keepdims=True))
            own = []
            for layer, old, keys in zip(self.decoder, cache["self"], cache["cross"]["layers"], strict=True):
                x_BxKxD, new = layer.step(x_BxKxD, old, Keys(*from_decoding_layout(*keys), mask_BxS), position)
                own.append(new)
            x_BxKxD = self.decoder_norm(x_BxKxD) if self.final_norm else x_BxKxD
            return self.logits(x_BxKxD), cache | {"self": own}

    @staticmethod
    def multiply_adds(model: Model, vocab: int, kernels: Mapping[str, int]) -> tuple[float, float, int, int, int]:
        """See `planning.flops.Products`: each kernel is applied to source and target, but of the last layer only keys and values
        to the source.
        """
        last = f"decoder_{model.num_decoder_layers - 1}/"
        unused = sum(
            size
            for path, size in kernels.items()
            if path.startswith(last) and "/key/" not in path and "/value/" not in path
        )
        total, layers = sum(kernels.values()), model.num_decoder_layers
        return total - unused, total + model.d_model * vocab, layers - 1, layers, layers
