"""Layers that are not the paper's against the NumPy float64 forward pass, alone and combined."""

import dataclasses

import pytest
from conformance.test_numpy_reference import TINY, compare_with_numpy

from t2t_flax.extensions.layer_types import LayerTypes

CASES = (
    dict(attention_score="additive", d_k=3, d_v=5, tie_embeddings="decoder", decoder_start_token="bos", activation="gelu"),
    dict(attention_score="additive", attention_bias=True, num_encoder_layers=2, pad_vocab_to_multiple=1),
    dict(position="rotary", norm_type="rmsnorm", norm_placement="pre", feed_forward="gated", activation="swish",
         num_kv_heads=2, num_decoder_layers=2),
    dict(position="rotary", d_k=6, d_v=3, attention_bias=True, mixer="local_attention",
         extensions=(("layer_types", LayerTypes(window=5, rope_theta=50.0)),)),
    dict(position="alibi", num_heads=6, num_kv_heads=1, d_k=4, d_v=4, feed_forward="gated", activation="gelu"),
    dict(position="alibi", attention_score="additive", norm_type="rmsnorm", norm_eps=1e-2),
)  # fmt: skip


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.smoke), *range(1, len(CASES))])
def test_logits_equal_numpys(seed):
    compare_with_numpy(dataclasses.replace(TINY, **CASES[seed]), seed)
