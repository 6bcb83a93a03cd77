"""FLOPs by formula against a count by hand."""

import jax
import jax.numpy as jnp
import pytest

from t2t_flax.config import Model
from t2t_flax.models import flops


def test_forward_flops_of_a_small_model_by_hand():
    """One pair, S 3, T 2; 1 + 1 layers, d 4, d_ff 8, 2 heads of 2, V 10: multiply-adds listed matrix by matrix."""
    model = Model(num_encoder_layers=1, num_decoder_layers=1, d_model=4, d_ff=8, num_heads=2)
    encoder = 3 * (4 * 4 * 4 + 2 * 4 * 8) + 2 * 3 * 3 * 4
    decoder = 2 * (4 * 4 * 4 + 2 * 4 * 4 + 2 * 4 * 8) + 2 * 2 * 2 * 4 + 3 * 2 * 4 * 4 + 2 * 2 * 3 * 4
    expected = 2 * (encoder + decoder + 2 * 4 * 10)
    tokens = flops.Tokens(source=3, target=2, source_self=9, target_self=4, cross=6)
    assert flops.forward_flops(model, 10, tokens) == expected


def test_formula_agrees_with_the_compilers_count():
    """XLA counts the unrolled program's products too; elementwise work is a few percent at this size."""
    import flax.linen as nn

    from t2t_flax.models.transformer import Transformer

    config = Model(num_encoder_layers=2, num_decoder_layers=2, d_model=256, d_ff=1024, num_heads=4)
    model = Transformer(config, 1024, 1024)
    batch = {
        side + part: jnp.ones((2, 32), jnp.int32)
        for side in ("source", "target")
        for part in ("", "_segments", "_positions")
    }
    params = jax.eval_shape(lambda: nn.unbox(model.init(jax.random.key(0), batch)))
    counted = jax.jit(model.apply).lower(params, batch).compile().cost_analysis()["flops"]
    tokens = flops.Tokens(64, 64, 2 * 32 * 32, 2 * 32 * 32, 2 * 32 * 32)
    assert flops.forward_flops(config, 1024, tokens) == pytest.approx(counted, rel=0.05)


@pytest.mark.parametrize("key", ["mixer", "feed_forward"])
def test_unknown_layer_kind_has_no_flops(key):
    with pytest.raises(ValueError, match="mamba"):
        flops.forward_flops(Model(**{key: "mamba"}), 10, flops.Tokens(1.0, 1.0, 1.0, 1.0, 1.0))


def test_forward_flops_of_grouped_heads_and_gated_feed_forward():
    """As above with one head of keys and values, and three feed-forward matrices."""
    model = Model(
        num_encoder_layers=1, num_decoder_layers=1, d_model=4, d_ff=8, num_heads=2, num_kv_heads=1, feed_forward="gated"
    )
    encoder = 3 * (2 * 4 * 4 + 2 * 4 * 2 + 3 * 4 * 8) + 2 * 3 * 3 * 4
    decoder = 2 * (2 * 4 * 4 + 2 * 4 * 2 + 2 * 4 * 4 + 3 * 4 * 8) + 2 * 2 * 2 * 4 + 3 * 2 * 4 * 2 + 2 * 2 * 3 * 4
    tokens = flops.Tokens(source=3, target=2, source_self=9, target_self=4, cross=6)
    assert flops.forward_flops(model, 10, tokens) == 2 * (encoder + decoder + 2 * 4 * 10)
