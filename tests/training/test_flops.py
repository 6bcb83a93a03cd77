"""FLOPs by formula against a count by hand."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from t2t_flax.cli import explain
from t2t_flax.config import Config, Model
from t2t_flax.extensions.layer_types import LayerTypes
from t2t_flax.models.attention import MixerInputs, make_mixer
from t2t_flax.training import flops
from t2t_flax.training.model_summary import state_on_one_device


def forward_flops(model: Model, vocab: int, tokens: flops.Tokens) -> float:
    params = state_on_one_device(Config(model=model), (vocab, vocab)).params
    return flops.forward_products(model, vocab, params).flops(model, tokens)


def test_forward_flops_of_a_small_model_by_hand():
    """One pair, S 3, T 2.

    1 + 1 layers, d 4, d_ff 8, 2 heads of 2, V 10: multiply-adds listed matrix by matrix.
    """
    model = Model(num_encoder_layers=1, num_decoder_layers=1, d_model=4, d_ff=8, num_heads=2)
    encoder = 3 * (4 * 4 * 4 + 2 * 4 * 8) + 2 * 3 * 3 * 4
    decoder = (
        2 * (4 * 4 * 4 + 2 * 4 * 4 + 2 * 4 * 8) + 2 * 2 * 2 * 4 + 3 * 2 * 4 * 4 + 2 * 2 * 3 * 4
    )
    expected = 2 * (encoder + decoder + 2 * 4 * 10)
    tokens = flops.Tokens(source=3, target=2, source_self=9, target_self=4, cross=6)
    assert forward_flops(model, 10, tokens) == expected


def test_formula_agrees_with_the_compilers_count():
    """XLA counts the unrolled program's products too.

    Elementwise work is a few percent at this size.
    """
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
    assert forward_flops(config, 1024, tokens) == pytest.approx(counted, rel=0.05)


def test_forward_flops_of_grouped_heads_and_gated_feed_forward():
    """As above with one head of keys and values, and three feed-forward matrices."""
    model = Model(
        num_encoder_layers=1,
        num_decoder_layers=1,
        d_model=4,
        d_ff=8,
        num_heads=2,
        num_kv_heads=1,
        feed_forward="gated",
    )
    encoder = 3 * (2 * 4 * 4 + 2 * 4 * 2 + 3 * 4 * 8) + 2 * 3 * 3 * 4
    decoder = (
        2 * (2 * 4 * 4 + 2 * 4 * 2 + 2 * 4 * 4 + 3 * 4 * 8)
        + 2 * 2 * 2 * 4
        + 3 * 2 * 4 * 2
        + 2 * 2 * 3 * 4
    )
    tokens = flops.Tokens(source=3, target=2, source_self=9, target_self=4, cross=6)
    assert forward_flops(model, 10, tokens) == 2 * (encoder + decoder + 2 * 4 * 10)


def test_products_of_table_1():
    """4nd^2 + 2n^2 d, 4nd^2 + 2rnd, 8nd^2, 6nd^2, knd^2 of a decoder's layer."""
    n, d = 100, 32

    def count(mixer="attention", **keys):
        model = Model(
            d_model=d, num_heads=4, mixer=mixer, extensions=(("layer_types", LayerTypes(**keys)),)
        )
        module = make_mixer(model, jnp.dtype("float32"), causal=True, depth=0)
        inputs = MixerInputs(jnp.ones((1, n), jnp.int32), jnp.arange(n)[None])
        init = lambda: nn.unbox(module.init(jax.random.key(0), jnp.ones((1, n, d)), inputs))  # noqa: E731
        params = jax.eval_shape(init)["params"]
        kernels = flops.forward_products(model, 0, {"decoder_0": {module.NAME: params}}).target
        return flops.Products(0, kernels, 0, 1, 0).flops(model, flops.Tokens(0, n, 0, n * n, 0)) / 2

    assert count() == 4 * n * d**2 + 2 * n**2 * d
    assert count("local_attention", window=9) == 4 * n * d**2 + 2 * 9 * n * d
    assert count("local_attention", window=999) == count()
    assert count(mixer="lstm") == 8 * n * d**2 and count(mixer="gru") == 6 * n * d**2
    assert (
        count("conv", conv_kernel_size=7)
        == count("dilated_conv", conv_kernel_size=7)
        == 7 * n * d**2
    )


def test_explain_has_the_flops_of_the_big_model(capsys):
    assert explain.run(["--config=aiayn_big"]) == 0
    out = capsys.readouterr().out
    (million,) = (
        float(row.split()[-2].replace(",", ""))
        for row in out.splitlines()
        if "27 +  27 tokens" in row
    )
    assert million == pytest.approx(1290, rel=0.05)
