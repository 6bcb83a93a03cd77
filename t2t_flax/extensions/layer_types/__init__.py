"""Layers beyond the paper's base model.

These are recurrent and convolutional mixers (Table 1), windows of self-attention (section 4),
additive scores, rotary positions and ALiBi, gated feed-forward networks, RMSNorm.
"""

import functools
from dataclasses import dataclass

from t2t_flax.config import Config, Model
from t2t_flax.config.keys import MODEL, key, one_of
from t2t_flax.errors import UserError
from t2t_flax.registry import FEED_FORWARDS, GROUPS, MIXERS, NORMS, POSITIONS, SCORES, Group

_model_key = functools.partial(key, changes=MODEL)


@dataclass(frozen=True)
class LayerTypes(Group):
    window: int = _model_key(
        65,
        "r, odd: model.mixer = local_attention reaches (r - 1) / 2 positions to each side"
        " (section 4)",
        unit="tokens",
        low=1,
        when=one_of("model.mixer", "local_attention"),
    )
    conv_kernel_size: int = _model_key(
        3,
        "k, odd: kernel width of model.mixer = conv, dilated_conv",
        unit="tokens",
        low=3,
        high=1025,
        when=one_of("model.mixer", "conv", "dilated_conv"),
    )
    rope_theta: float = _model_key(
        10000.0,
        "base of the wavelengths of model.position = rotary",
        low=1.0,
        high=1e12,
        when=one_of("model.position", "rotary"),
    )

    @classmethod
    def of(cls, config: Config | Model) -> "LayerTypes":
        return config.group("layer_types")

    def check(self, config: Config) -> None:
        """Raise UserError for an even width, and for layers that do not fit together."""
        m = config.model
        if self.window % 2 == 0:
            raise UserError(
                f"config.layer_types.window = {self.window} is even: a window has as many positions"
                " before its centre as after it, so it must be odd."
            )
        if self.conv_kernel_size % 2 == 0:
            raise UserError(
                f"config.layer_types.conv_kernel_size = {self.conv_kernel_size} is even: the"
                " encoder's convolution is symmetric."
            )
        _check_layers(m)


def _check_layers(m: Model) -> None:
    if m.mixer in ("lstm", "gru") and m.d_model % 2:
        raise UserError(
            f"config.model.d_model = {m.d_model} is odd: each direction of the encoder's {m.mixer}"
            " takes half of it."
        )
    if m.num_kv_heads not in (0, m.num_heads) and m.attention_score == "additive":
        raise UserError(
            f"config.model.num_kv_heads = {m.num_kv_heads} needs a dot product;"
            " config.model.attention_score = additive."
        )
    if m.position in ("rotary", "alibi") and m.mixer not in ("attention", "local_attention"):
        raise UserError(
            f"config.model.position = {m.position} acts in self-attention; config.model.mixer ="
            f" {m.mixer} has none."
        )
    if m.position == "rotary" and m.head_widths[0] % 2:
        raise UserError(
            "config.model.position = rotary rotates pairs of features, but a head's width is odd:"
            f" change config.model.d_k = {m.d_k} (0 = d_model / num_heads ="
            f" {m.d_model // m.num_heads})."
        )
    if m.position == "rotary" and m.attention_score == "additive":
        raise UserError(
            "config.model.position = rotary needs a dot product, the only score that then depends"
            " on the distance; config.model.attention_score = additive."
        )


_FOLDER = "t2t_flax.extensions.layer_types"

MIXERS.add("local_attention", f"{_FOLDER}.local_attention:LocalAttention")
MIXERS.add("lstm", f"{_FOLDER}.mixers:LSTM")
MIXERS.add("gru", f"{_FOLDER}.mixers:GRU")
MIXERS.add("conv", f"{_FOLDER}.mixers:Convolution")
MIXERS.add("dilated_conv", f"{_FOLDER}.mixers:DilatedConvolution")
SCORES.add("additive", f"{_FOLDER}.layers:AdditiveScore")
POSITIONS.add("rotary", f"{_FOLDER}.positions:ROTARY")
POSITIONS.add("alibi", f"{_FOLDER}.positions:ALIBI")
FEED_FORWARDS.add("gated", f"{_FOLDER}.layers:GatedFeedForward")
NORMS.add("rmsnorm", f"{_FOLDER}.layers:rms_norm")
GROUPS.add("layer_types", LayerTypes)
