"""Encoder-decoder of "Attention Is All You Need", section 3.

Letters: B batch, S source length, T target length, D d_model, N heads, H head width, V vocabulary,
L layers, K beam. The suffix of a name lists the axes: x_BxTxD is [B, T, D].
Ids: 0 is padding, 1 ends a sentence.
Packed rows hold several sentence pairs. Segment ids number the pairs of a row from 1, and 0 is
padding. Positions restart at 0 in each segment.
Memory: the encoder output. Mixer: the sub-layer that mixes positions, by default self-attention.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t2t_flax.config import Model
from t2t_flax.models.attention import MixerInputs, SegmentMask
from t2t_flax.models.decoding_cache import decoding_layout
from t2t_flax.models.dense import make_norm
from t2t_flax.models.dropout import Dropout, Noise
from t2t_flax.models.embeddings import DecoderStart, Embedding, PositionVectors
from t2t_flax.models.layers import DecoderLayer, EncoderLayer


def matmul_precision_scope(precision: str | None) -> contextlib.AbstractContextManager:
    """Set `jax.default_matmul_precision` for float32 products traced in the block.

    Args:
        precision: None = JAX's default.
    """
    return jax.default_matmul_precision(precision) if precision else contextlib.nullcontext()


def _with_matmul_precision(method: Callable) -> Callable:
    """Trace a method under the model's matmul_precision: each one that callers apply."""

    @functools.wraps(method)
    def traced(self, *args, **kwargs):
        with matmul_precision_scope(self.matmul_precision):
            return method(self, *args, **kwargs)

    return traced


REMAT = {"dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "full": None}
"""Checkpoint policies by config.train.remat; None recomputes the whole layer."""


class Transformer(nn.Module):
    """Encoder-decoder Transformer.

    Embedding tables have one row for each token, rounded up to a multiple of
    config.pad_vocab_to_multiple ("V rows" in the shapes below).

    Args:
        source_vocab: size of the source tokenizer.
        target_vocab: size of the target tokenizer.
        dtype: compute dtype of matrix products.
        remat: "none" or a key of `REMAT`.
        matmul_precision: precision of float32 products, see `matmul_precision_scope`.
        logits_chunk: number of tokens whose logits the loss holds in memory at once.
    """

    config: Model
    source_vocab: int
    target_vocab: int
    dtype: jnp.dtype = jnp.dtype("float32")
    remat: str = "none"
    matmul_precision: str | None = None
    logits_chunk: int = 512

    def setup(self):
        c = self.config
        embedding = functools.partial(Embedding, c, dtype=self.dtype)

        def rows(vocab: int) -> int:
            return -(-vocab // c.pad_vocab_to_multiple) * c.pad_vocab_to_multiple

        if c.tie_embeddings == "all":
            self.shared_embedding = embedding(rows(self.target_vocab))
            self.source_embedding = self.target_embedding = self.shared_embedding
        else:
            self.source_embedding = embedding(rows(self.source_vocab))
            self.target_embedding = embedding(rows(self.target_vocab))
        untied = c.tie_embeddings == "none"
        self.output_embedding = (
            embedding(rows(self.target_vocab)) if untied else self.target_embedding
        )
        if c.output_bias:
            init = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
            self.output_bias: Any = self.param(
                "output_bias", init, (rows(self.target_vocab),), jnp.float32
            )
        self.source_positions = PositionVectors(c, self.dtype)
        self.target_positions = PositionVectors(c, self.dtype)
        self.decoder_start_token = DecoderStart(c, self.dtype)
        encoder_layer, decoder_layer = EncoderLayer, DecoderLayer
        if self.remat != "none":
            encoder_layer = nn.remat(EncoderLayer, policy=REMAT[self.remat])
            decoder_layer = nn.remat(DecoderLayer, policy=REMAT[self.remat], methods=["__call__"])
        self.encoder = [encoder_layer(c, self.dtype, i) for i in range(c.num_encoder_layers)]
        self.decoder = [decoder_layer(c, self.dtype, i) for i in range(c.num_decoder_layers)]
        if self.has_final_norms:
            self.encoder_norm = make_norm(c, self.dtype)
            self.decoder_norm = make_norm(c, self.dtype)
        self.source_dropout, self.target_dropout = Dropout(c.dropout), Dropout(c.dropout)

    @property
    def has_final_norms(self) -> bool:
        """True if each stack ends in a norm.

        "auto" adds one with pre-norm, where nothing else normalizes the output of the stack.
        """
        return self.config.final_norm == "both" or (
            self.config.final_norm == "auto" and self.config.norm_placement == "pre"
        )

    def __call__(self, batch: dict[str, jax.Array], noise: Noise | None = None) -> jax.Array:
        """Compute float32 logits [B, T, V rows]; logits at t predict target token t.

        Args:
            batch: int32 arrays of packed or padded rows: source, source_segments and
                source_positions [B, S], and the same for target [B, T].
            noise: inputs of the dropout masks; None disables dropout.
        """
        return self.logits(self.hidden(batch, noise))

    @_with_matmul_precision
    def hidden(self, batch: dict[str, jax.Array], noise: Noise | None = None) -> jax.Array:
        """Return the decoder output [B, T, D], the input of `logits`."""
        memory_BxSxD = self.encode(
            batch["source"], batch["source_segments"], batch["source_positions"], noise
        )
        return self.decode(memory_BxSxD, batch, noise)

    @_with_matmul_precision
    def encode(
        self, source_BxS, segments_BxS, positions_BxS, noise: Noise | None = None
    ) -> jax.Array:
        """Return the encoder output [B, S, D] (3.1). Attention ignores padding."""
        x = self.source_embedding(source_BxS) + self.source_positions(positions_BxS)  # 3.4, 3.5
        x = constrain(self.source_dropout(x, noise))
        inputs = MixerInputs(segments_BxS, positions_BxS, noise)
        for layer in self.encoder:
            x = constrain(layer(x, inputs))
        return self.encoder_norm(x) if self.has_final_norms else x

    @_with_matmul_precision
    def decode(
        self, memory_BxSxD: jax.Array, batch: dict[str, jax.Array], noise: Noise | None = None
    ) -> jax.Array:
        """Return the decoder output [B, T, D] for known targets (3.1), as in training.

        In each segment the targets are shifted right by one, behind the start token.
        """
        embedding = self.target_embedding
        positions_BxT = batch["target_positions"]
        segments_BxT = batch["target_segments"]
        # The shift moves the last token of a segment to position 0 of the next one, where the start
        # token takes its place.
        shifted = jnp.pad(embedding(batch["target"]), ((0, 0), (1, 0), (0, 0)))[:, :-1]
        x = jnp.where(
            (positions_BxT == 0)[..., None], self.decoder_start_token(embedding), shifted
        ) + self.target_positions(positions_BxT)
        x = constrain(self.target_dropout(x, noise))
        inputs = MixerInputs(segments_BxT, positions_BxT, noise)
        cross_mask = SegmentMask(segments_BxT, batch["source_segments"])
        for layer in self.decoder:
            x = constrain(layer(x, memory_BxSxD, inputs, cross_mask))
        return self.decoder_norm(x) if self.has_final_norms else x

    @_with_matmul_precision
    def logits(self, x: jax.Array) -> jax.Array:
        """Project [..., D] to float32 logits [..., V rows] (3.4).

        Rows beyond the vocabulary get -1e9, so they are never predicted. Training does not call
        this: `losses.loss_sums` computes the same logits in chunks. Change both.
        """
        logits = self.output_embedding.logits(x)
        logits = logits + self.output_bias if self.config.output_bias else logits
        if logits.shape[-1] == self.target_vocab:
            return logits
        return jnp.where(jnp.arange(logits.shape[-1]) < self.target_vocab, logits, -1e9)

    @property
    def table_params(self) -> tuple[str, ...]:
        """Names of the top-level parameters that hold the embedding tables."""
        if self.config.tie_embeddings == "all":
            return ("shared_embedding",)
        own = ("output_embedding",) if self.config.tie_embeddings == "none" else ()
        return ("source_embedding", "target_embedding", *own)

    @property
    def output_params(self) -> tuple[str, ...]:
        """Names of the top-level parameters that `logits` reads."""
        names = {
            "all": "shared_embedding",
            "decoder": "target_embedding",
            "none": "output_embedding",
        }
        return (
            names[self.config.tie_embeddings],
            *(("output_bias",) if self.config.output_bias else ()),
        )

    @_with_matmul_precision
    def start_cache(self, source_BxS: jax.Array, beam_size: int, length: int) -> dict[str, Any]:
        """Encode the sources, one per row, and return the cache for `decode_step`.

        `cache["cross"]` holds the source mask, and the keys and values of the encoder output for
        each decoder layer, in the layout of `decoding_layout`. All beams of a source share them.
        `cache["self"]` holds an empty cache for each decoder layer's mixer.

        Args:
            source_BxS: token ids, padded with 0.
            length: number of target positions.
        """
        mask_BxS = source_BxS > 0
        # Padding gets position 0: it may extend beyond a table of learned positions.
        positions_BxS = jnp.where(mask_BxS, jnp.arange(source_BxS.shape[1]), 0)
        segments_BxS = mask_BxS.astype(jnp.int32)  # each row is one segment
        memory_BxSxD = self.encode(source_BxS, segments_BxS, positions_BxS)
        cross_caches = [
            decoding_layout(*layer.cross_attention.keys_values(memory_BxSxD))
            for layer in self.decoder
        ]
        self_caches = [
            layer.mixer.empty_cache(len(source_BxS), beam_size, length) for layer in self.decoder
        ]
        return {"self": self_caches, "cross": {"layers": cross_caches, "mask": mask_BxS}}

    @_with_matmul_precision
    def decode_step(self, tokens_BxK: jax.Array, position: jax.Array, cache: dict[str, Any]):
        """Return logits [B, K, V rows] at one position, and the new cache.

        Args:
            tokens_BxK: tokens at `position` - 1; ignored at position 0.
            position: int32 [].
        """
        embedding = self.target_embedding
        x_BxKxD = jnp.where(
            position == 0, self.decoder_start_token(embedding), embedding(tokens_BxK)
        )
        x_BxKxD += self.target_positions(position)
        self_cache = []
        for layer, old, cross in zip(
            self.decoder, cache["self"], cache["cross"]["layers"], strict=True
        ):
            x_BxKxD, new = layer.step(x_BxKxD, old, cross, cache["cross"]["mask"], position)
            self_cache.append(new)
        x_BxKxD = self.decoder_norm(x_BxKxD) if self.has_final_norms else x_BxKxD
        return self.logits(x_BxKxD), cache | {"self": self_cache}


def constrain(x_BxTxD: jax.Array) -> jax.Array:
    """Constrain activations to the sharding that the mesh rules give their axes."""
    return nn.with_logical_constraint(x_BxTxD, ("batch", "length", "act_embed"))
