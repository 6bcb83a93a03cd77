"""Layers that are not the paper's: recurrent and convolutional mixers (Table 1), windows of self-attention (section 4), additive
scores, rotary positions and ALiBi, gated feed-forward networks, RMSNorm.
"""

from t2t_flax.registry import FEED_FORWARDS, MIXERS, NORMS, POSITIONS, SCORES, add_group

_FOLDER = "t2t_flax.extensions.layer_types"

MIXERS.add("local_attention", f"{_FOLDER}.local_attention:LocalAttention")
MIXERS.add("lstm", f"{_FOLDER}.mixers:LSTM")
MIXERS.add("gru", f"{_FOLDER}.mixers:GRU")
MIXERS.add("conv", f"{_FOLDER}.mixers:Convolution")
MIXERS.add("dilated_conv", f"{_FOLDER}.mixers:DilatedConvolution")
SCORES.add("additive", f"{_FOLDER}.scores:AdditiveScore")
POSITIONS.add("rotary", f"{_FOLDER}.positions:ROTARY")
POSITIONS.add("alibi", f"{_FOLDER}.positions:ALIBI")
FEED_FORWARDS.add("gated", f"{_FOLDER}.feed_forward:GatedFeedForward")
NORMS.add("rmsnorm", f"{_FOLDER}.norms:rms_norm")
add_group("layer_types", f"{_FOLDER}.keys", "LayerTypes")
