"""Keys of the group `model`; see `schema`."""

import functools
from dataclasses import dataclass

from t2t_flax.config.keys import MODEL, TRAINING, Value, key, one_of
from t2t_flax.registry import (
    ACTIVATIONS,
    ATTENTION_KERNELS,
    FEED_FORWARDS,
    GROUPS,
    MIXERS,
    NORMS,
    POSITIONS,
    SCORES,
)

model_key = functools.partial(key, changes=MODEL)
"""Key that defines the model.

Another value gives another model, so it never changes on resume.
"""


@dataclass(frozen=True)
class Model:
    num_encoder_layers: int = model_key(
        6, "N, identical layers of the encoder (3.1)", low=0, high=1024
    )
    num_decoder_layers: int = model_key(
        6, "N, identical layers of the decoder (3.1)", low=1, high=1024
    )
    d_model: int = model_key(512, "width of every sub-layer and embedding (3.1)", low=2, high=2**16)
    d_ff: int = model_key(
        2048, "inner width of the feed-forward sub-layer (3.3)", low=1, high=2**20
    )
    num_heads: int = model_key(8, "h, parallel attention heads (3.2.2)", low=1, high=2**12)
    num_kv_heads: int = model_key(
        0,
        "heads of keys and values, each shared by num_heads / num_kv_heads query heads; 0 ="
        " num_heads, 1 = multi-query",
        low=0,
        high=2**12,
    )
    d_k: int = model_key(
        0, "width of a head's queries and keys; 0 = d_model / num_heads (3.2.2)", low=0, high=2**14
    )
    d_v: int = model_key(
        0, "width of a head's values; 0 = d_model / num_heads (3.2.2)", low=0, high=2**14
    )
    dropout: float = key(
        0.1,
        "P_drop on each sub-layer's output before the residual sum, and on the sum of embedding and"
        " position (5.4)",
        low=0.0,
        high=0.99,
    )
    dropout_attention: float = key(
        0.0, "rate on attention weights; the paper has none", low=0.0, high=0.99
    )
    dropout_ffn: float = key(
        0.0, "rate on the feed-forward hidden units; the paper has none", low=0.0, high=0.99
    )
    feed_forward: str = model_key(
        "dense",
        "feed-forward sub-layer; dense = activation(x W1 + b1) W2 + b2 (3.3)",
        choices=FEED_FORWARDS,
    )
    activation: str = model_key(
        "relu",
        "activation of the feed-forward sub-layer (3.3); gelu by its tanh approximation",
        choices=ACTIVATIONS,
    )
    attention_score: str = model_key(
        "scaled_dot",
        "compatibility function of query and key: scaled_dot = q k / sqrt(d_k) (3.2.1), dot = q k",
        choices=SCORES,
    )
    mixer: str = model_key(
        "attention",
        "layer that mixes positions: self-attention (3.2.3) or a replacement; cross-attention is"
        " unaffected",
        choices=MIXERS,
    )
    attention_kernel: str = key(
        "auto",
        "how attention is computed in training: einsum, or a fused bfloat16 kernel; auto = the"
        " kernel of the platform, for rows that it makes faster. Einsum where a kernel does not"
        " apply, in decoding, and where weights are read",
        choices=ATTENTION_KERNELS,
        mutable=True,
        changes=TRAINING,
    )
    attention_bias: bool = model_key(
        False, "biases in the four projections of attention; the paper's formulas have none"
    )
    kernel_init: str = key(
        "xavier",
        "Xavier uniform with gain 1, or with gain 1/sqrt(2) for queries, keys and values as in"
        " fairseq",
        choices=("xavier", "xavier_qkv_rsqrt2"),
    )
    norm_type: str = model_key(
        "layernorm", "norm of sub-layers and stacks: LayerNorm in the paper (3.1)", choices=NORMS
    )
    norm_placement: str = model_key(
        "post",
        "norm after the residual sum (paper, 3.1) or before the sub-layer",
        choices=("post", "pre"),
    )
    final_norm: str = model_key(
        "auto",
        "norm at the end of each stack; auto = with pre-norm only",
        choices=("auto", "both", "none"),
    )
    norm_eps: float = model_key(
        1e-6, "epsilon of the norms; the paper gives none", low=1e-12, high=1e-1
    )
    position: str = model_key(
        "sinusoid_interleaved",
        "how positions enter: vectors added to the embeddings (3.5; halves = all sines, then all"
        " cosines, as in tensor2tensor)",
        choices=POSITIONS,
    )
    position_offset: int = model_key(
        0,
        "index of the first position of the sinusoids: 0 in the paper, 2 in fairseq",
        low=0,
        high=2,
        when=one_of("model.position", "sinusoid_interleaved", "sinusoid_halves"),
    )
    max_positions: int = model_key(
        1024,
        "rows of the learned position tables",
        unit="tokens",
        low=1,
        high=2**20,
        when=one_of("model.position", "learned"),
    )
    tie_embeddings: str = model_key(
        "all",
        "one matrix for source, target and softmax (3.4); decoder = target and softmax; none ="
        " three matrices",
        choices=("all", "decoder", "none"),
    )
    embed_scale: str = model_key(
        "sqrt_d", "factor of both lookups (3.4): sqrt(d_model), or none", choices=("sqrt_d", "none")
    )
    embed_init: str = key(
        "normal_rsqrt_d",
        "initial table: normal with std d_model^-0.5, normal with std 1, or Xavier uniform over"
        " vocabulary and d_model",
        choices=("normal_rsqrt_d", "normal_1", "xavier"),
    )
    logit_scale: str = model_key(
        "none", "factor of the logits: none (paper), or d_model^-0.5", choices=("none", "rsqrt_d")
    )
    output_bias: bool = model_key(False, "a bias before the softmax; the paper has none")
    decoder_start_token: str = model_key(
        "zeros",
        "decoder input before the first target token: a zero vector (tensor2tensor), the embedding"
        " of EOS (fairseq), one of its own, or that of padding",
        choices=("zeros", "eos", "bos", "pad"),
    )
    pad_vocab_to_multiple: int = model_key(
        128,
        "embedding rows are padded to a multiple of this; padded rows are never predicted nor"
        " counted",
        low=1,
        high=2**16,
    )
    extensions: tuple[tuple[str, Value], ...] = ()
    """Groups of extensions with keys that change the model. This field is not a key."""

    def group(self, name: str) -> Value:
        """Return the keys of an extension that belong to the model."""
        return dict(self.extensions).get(name) or GROUPS[name]()

    @property
    def head_widths(self) -> tuple[int, int]:
        """Widths (d_k, d_v) of a head (3.2.2)."""
        width = self.d_model // self.num_heads
        return self.d_k or width, self.d_v or width

    @property
    def key_heads(self) -> int:
        """Number of key and value heads."""
        return self.num_kv_heads or self.num_heads
