"""The encoder-decoder of "Attention Is All You Need", section 3.

Letters: B batch, S source length, T target length, D d_model, N heads, H head width, V vocabulary, L layers, K beam.
Ids: 0 is padding, 1 ends a sentence. Segment ids number the pairs of a packed row from 1; 0 is padding. Positions
restart at 0 in each segment.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t2t_flax.config import Model
from t2t_flax.models import positions
from t2t_flax.models.attention import MultiHeadAttention, causal_mask, segment_mask
from t2t_flax.models.dropout import Dropout, Noise
from t2t_flax.models.layers import Embedding, FeedForward, layer_norm

REMAT = {"dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "full": None}


class Residual(nn.Module):
    """LayerNorm(x + Dropout(f(x))) (3.1, 5.4), or x + Dropout(f(LayerNorm(x))) with pre-norm."""

    config: Model
    dtype: jnp.dtype

    def setup(self):
        self.norm = layer_norm(self.config.norm_eps, self.dtype)
        self.drop = Dropout(self.config.dropout)

    def __call__(self, x, sublayer, noise):
        if self.config.norm == "pre":
            return x + self.drop(sublayer(self.norm(x)), noise)
        return self.norm(x + self.drop(sublayer(x), noise))


def _attention(config: Model, dtype: jnp.dtype) -> MultiHeadAttention:
    width = config.d_model // config.num_heads
    return MultiHeadAttention(
        config.d_model, config.num_heads, config.d_k or width, config.d_v or width, config.dropout_attention, dtype
    )


class EncoderLayer(nn.Module):
    config: Model
    dtype: jnp.dtype

    def setup(self):
        self.self_attention = _attention(self.config, self.dtype)
        self.feed_forward = FeedForward(self.config.d_model, self.config.d_ff, self.config.dropout_ffn, self.dtype)
        self.residual_attention = Residual(self.config, self.dtype)
        self.residual_ffn = Residual(self.config, self.dtype)

    def __call__(self, x, mask, noise):
        x = self.residual_attention(x, lambda y: self.self_attention(y, y, mask, noise), noise)
        return self.residual_ffn(x, lambda y: self.feed_forward(y, noise), noise)


class DecoderLayer(nn.Module):
    config: Model
    dtype: jnp.dtype

    def setup(self):
        self.self_attention = _attention(self.config, self.dtype)
        self.cross_attention = _attention(self.config, self.dtype)
        self.feed_forward = FeedForward(self.config.d_model, self.config.d_ff, self.config.dropout_ffn, self.dtype)
        self.residual_attention = Residual(self.config, self.dtype)
        self.residual_cross = Residual(self.config, self.dtype)
        self.residual_ffn = Residual(self.config, self.dtype)

    def __call__(self, x, memory, mask, cross_mask, noise):
        x = self.residual_attention(x, lambda y: self.self_attention(y, y, mask, noise), noise)
        x = self.residual_cross(x, lambda y: self.cross_attention(y, memory, cross_mask, noise), noise)
        return self.residual_ffn(x, lambda y: self.feed_forward(y, noise), noise)

    def step(self, x_BxKxD, self_cache, cross_cache, source_mask_BxS, position):
        new_cache = {}

        def self_attention(y):
            out, new_cache["self"] = self.self_attention.self_step(y, self_cache, position)
            return out

        def cross_attention(y):
            return self.cross_attention.cross_step(y, cross_cache["key"], cross_cache["value"], source_mask_BxS)

        x = self.residual_attention(x_BxKxD, self_attention, None)
        x = self.residual_cross(x, cross_attention, None)
        return self.residual_ffn(x, lambda y: self.feed_forward(y, None), None), new_cache["self"]


class Transformer(nn.Module):
    """`source_vocab` and `target_vocab` are the tokenizers' sizes; the tables hold them rounded up to vocab_multiple."""

    config: Model
    source_vocab: int
    target_vocab: int
    dtype: jnp.dtype = jnp.float32
    remat: str = "none"

    def setup(self):
        c = self.config
        embedding = functools.partial(Embedding, d_model=c.d_model, dtype=self.dtype)
        rows = lambda vocab: -(-vocab // c.vocab_multiple) * c.vocab_multiple  # noqa: E731
        if c.tying == "all":
            self.shared_embedding = embedding(rows(self.target_vocab))
        else:
            self.source_embedding = embedding(rows(self.source_vocab))
            self.target_embedding = embedding(rows(self.target_vocab))
        if c.tying == "none":
            self.output_embedding = embedding(rows(self.target_vocab))
        if c.position == "learned":
            init = nn.with_logical_partitioning(nn.initializers.normal(c.d_model**-0.5), ("position", "table"))
            table = (c.position_max, c.d_model)
            self.source_positions = self.param("source_positions", init, table, jnp.float32)
            self.target_positions = self.param("target_positions", init, table, jnp.float32)
        encoder_layer, decoder_layer = EncoderLayer, DecoderLayer
        if self.remat != "none":
            encoder_layer = nn.remat(EncoderLayer, policy=REMAT[self.remat])
            decoder_layer = nn.remat(DecoderLayer, policy=REMAT[self.remat], methods=["__call__"])
        self.encoder = [encoder_layer(c, self.dtype) for _ in range(c.num_encoder_layers)]
        self.decoder = [decoder_layer(c, self.dtype) for _ in range(c.num_decoder_layers)]
        if c.norm == "pre":  # without it the sum of all sub-layers would reach the softmax unnormalised
            self.encoder_norm = layer_norm(c.norm_eps, self.dtype)
            self.decoder_norm = layer_norm(c.norm_eps, self.dtype)
        rate = c.dropout if c.dropout_embed is None else c.dropout_embed
        self.source_dropout, self.target_dropout = Dropout(rate), Dropout(rate)

    def __call__(self, batch: dict[str, jax.Array], noise: Noise | None = None) -> jax.Array:
        """Packed or padded rows -> float32 logits [B, T, V rows]; logits at t predict target token t.

        batch: source, source_segments, source_positions [B, S] and the same for target [B, T], all int32.
        """
        memory_BxSxD = self.encode(batch["source"], batch["source_segments"], batch["source_positions"], noise)
        hidden_BxTxD = self.decode(memory_BxSxD, batch, noise)
        return self.logits(hidden_BxTxD)

    def encode(self, source_BxS, segments_BxS, positions_BxS, noise: Noise | None = None) -> jax.Array:
        """Encoder output [B, S, D] (3.1); padding is masked out of every attention."""
        embedding = self.shared_embedding if self.config.tying == "all" else self.source_embedding
        x = embedding(source_BxS) + self._position(positions_BxS, "source")
        x = _constrain(self.source_dropout(x, noise))
        mask = segment_mask(segments_BxS, segments_BxS)
        for layer in self.encoder:
            x = _constrain(layer(x, mask, noise))
        return self.encoder_norm(x) if self.config.norm == "pre" else x

    def decode(self, memory_BxSxD: jax.Array, batch: dict[str, jax.Array], noise: Noise | None = None) -> jax.Array:
        """Decoder output [B, T, D] for known targets, which are shifted right by a zero vector in each segment (3.1)."""
        embedding = self.shared_embedding if self.config.tying == "all" else self.target_embedding
        position, segments = batch["target_positions"], batch["target_segments"]
        shifted = jnp.pad(embedding(batch["target"]), ((0, 0), (1, 0), (0, 0)))[:, :-1]
        x = jnp.where(position[..., None] == 0, 0, shifted) + self._position(position, "target")
        x = _constrain(self.target_dropout(x, noise))
        mask = segment_mask(segments, segments) & causal_mask(segments.shape[1])
        cross_mask = segment_mask(segments, batch["source_segments"])
        for layer in self.decoder:
            x = _constrain(layer(x, memory_BxSxD, mask, cross_mask, noise))
        return self.decoder_norm(x) if self.config.norm == "pre" else x

    def logits(self, x: jax.Array) -> jax.Array:
        """[..., D] -> float32 logits [..., V rows]; rows beyond the vocabulary are never predicted."""
        names = {"all": "shared_embedding", "decoder": "target_embedding", "none": "output_embedding"}
        logits = getattr(self, names[self.config.tying]).logits(x)
        return jnp.where(jnp.arange(logits.shape[-1]) < self.target_vocab, logits, -1e9)

    def start_cache(self, source_BxS: jax.Array, beam_size: int, length: int) -> dict[str, Any]:
        """Encodes sources (one a row, zero-padded) and returns the cache for `decode_step`.

        `cache["cross"]`: each layer's keys and values [B, S, N, H] of the encoder output, made once and shared by the
        beams, and the source mask; `cache["self"]`: empty keys and values [B, K, length, N, H].
        """
        mask_BxS = source_BxS > 0
        positions_BxS = jnp.broadcast_to(jnp.arange(source_BxS.shape[1]), source_BxS.shape)
        memory_BxSxD = self.encode(source_BxS, mask_BxS.astype(jnp.int32), positions_BxS)
        keys_values = [layer.cross_attention.keys_values(memory_BxSxD) for layer in self.decoder]
        cross = [{"key": k, "value": v} for k, v in keys_values]
        empty = lambda x: jnp.zeros((x.shape[0], beam_size, length, *x.shape[2:]), x.dtype)  # noqa: E731
        return {"self": jax.tree.map(empty, cross), "cross": {"layers": cross, "mask": mask_BxS}}

    def decode_step(self, tokens_BxK: jax.Array, position: jax.Array, cache: dict[str, Any]):
        """Logits [B, K, V rows] at `position`, given the tokens of position - 1 (ignored at 0), and the new cache."""
        embedding = self.shared_embedding if self.config.tying == "all" else self.target_embedding
        x_BxKxD = jnp.where(position == 0, 0, embedding(tokens_BxK)) + self._position(position, "target")
        self_cache = []
        for layer, old, cross in zip(self.decoder, cache["self"], cache["cross"]["layers"], strict=True):
            x_BxKxD, new = layer.step(x_BxKxD, old, cross, cache["cross"]["mask"], position)
            self_cache.append(new)
        x_BxKxD = self.decoder_norm(x_BxKxD) if self.config.norm == "pre" else x_BxKxD
        return self.logits(x_BxKxD), cache | {"self": self_cache}

    def _position(self, position: jax.Array, side: str) -> jax.Array:
        if self.config.position == "learned":
            table = self.source_positions if side == "source" else self.target_positions
            return jnp.take(table, position, axis=0, mode="fill", fill_value=jnp.nan).astype(self.dtype)
        return positions.KINDS[self.config.position](position, self.config.d_model).astype(self.dtype)


def _constrain(x_BxTxD: jax.Array) -> jax.Array:
    return nn.with_logical_constraint(x_BxTxD, ("batch", "length", "act_embed"))
