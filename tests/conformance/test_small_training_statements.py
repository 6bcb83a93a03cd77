"""The paper's remarks about training, one test each (sections in parentheses)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_flax.config import Config, Model, Optimizer
from t2t_flax.models.attention import MultiHeadAttention
from t2t_flax.models.dropout import Dropout, Noise, noise_key
from t2t_flax.models.embeddings import Embedding
from t2t_flax.models.transformer import Transformer
from t2t_flax.training.losses import smoothed_cross_entropy
from t2t_flax.training.optimizer import learning_rate_schedule


@pytest.mark.parametrize(
    ("constant", "d_model", "warmup", "origin"), [(2.0, 1024, 8000, 0), (3.3, 128, 664, 1)]
)
def test_schedules_coincide_where_their_peaks_do(constant, d_model, warmup, origin):
    """noam = inverse_sqrt with peak constant * (d_model * warmup)^-0.5 and warmup_init 0."""
    shared = dict(warmup_steps=warmup, schedule_first_step=origin)
    model = Model(d_model=d_model)
    noam = learning_rate_schedule(
        Config(model=model, optimizer=Optimizer(lr_scale=constant, **shared))
    )
    peak = constant * (d_model * warmup) ** -0.5
    o = Optimizer(schedule="inverse_sqrt", peak_lr=peak, warmup_init=0.0, **shared)
    other = learning_rate_schedule(Config(model=model, optimizer=o))
    updates = jnp.arange(2, 5 * warmup, 13)
    np.testing.assert_allclose(noam(updates), other(updates), rtol=1e-5)
    assert float(noam(warmup + 1 - origin)) == pytest.approx(peak, rel=1e-5)


@pytest.mark.parametrize("mass", ["all", "non_target"])
def test_smoothed_loss_is_at_least_the_target_entropy(mass):
    """The minimum is the entropy of the smoothed target.

    1.377 nats at eps 0.1 and 37,000 classes.
    """
    vocab, target = 37_000, 5
    if mass == "all":
        p = np.full(vocab, 0.1 / vocab)
        p[target] += 0.9
    else:
        p = np.full(vocab, 0.1 / (vocab - 1))
        p[target] = 0.9

    def loss(x):
        return smoothed_cross_entropy(0.1, mass, vocab, x[None], np.array([target]), jnp.ones(1))[0]

    floor, slope = jax.jit(jax.value_and_grad(loss))(jnp.log(p))
    assert (
        float(floor)
        == pytest.approx(-(p * np.log(p)).sum(), abs=1e-4)
        == pytest.approx(1.377, abs=5e-4)
    )
    np.testing.assert_allclose(slope, 0.0, atol=1e-5)
    away = jax.random.normal(jax.random.key(0), (vocab,))
    assert float(loss(jnp.log(p) + 0.1 * away)) > floor


@pytest.mark.parametrize("kind", ["xavier", "xavier_qkv_rsqrt2"])
def test_attention_kernels_have_xavier_deviation_with_free_d_k_and_d_v(kind):
    """sqrt(2 / (fan_in + fan_out)) for [d_model, h d_k], [d_model, h d_v], [h d_v, d_model]."""
    config = Model(d_model=256, num_heads=4, d_k=16, d_v=128, kernel_init=kind)
    x, mask = jnp.zeros((1, 2, 256)), jnp.ones((1, 1, 2, 2), bool)
    params = nn.unbox(
        jax.jit(MultiHeadAttention(config).init)(jax.random.key(0), x, x, mask, None)
    )["params"]
    gain = 0.5**0.5 if kind == "xavier_qkv_rsqrt2" else 1.0
    for name, inner, factor in (
        ("query", 64, gain),
        ("key", 64, gain),
        ("value", 512, gain),
        ("out", 512, 1.0),
    ):
        expected = factor * (2 / (256 + inner)) ** 0.5
        kernel = np.asarray(params[name]["kernel"])
        assert kernel.std() == pytest.approx(expected, rel=0.02), name
        assert np.abs(kernel).max() == pytest.approx(expected * 3**0.5, rel=0.01), name  # uniform


@pytest.mark.parametrize(
    ("kind", "deviation"),
    [("normal_rsqrt_d", 128**-0.5), ("normal_1", 1.0), ("xavier", (2 / (900 + 128)) ** 0.5)],
)
def test_embedding_tables_have_their_standard_deviation(kind, deviation):
    module = Embedding(Model(d_model=128, embed_init=kind), 900)
    params = nn.unbox(module.init(jax.random.key(0), jnp.zeros((1,), jnp.int32)))["params"]
    assert np.std(params["table"]) == pytest.approx(deviation, rel=0.01)


def measured_drops(config: Model) -> dict[str, float]:
    """The share of elements zeroed in one update, by Dropout module of the model."""
    model, rows, length, drops = Transformer(config, 37, 37), 64, 24, {}
    ids = np.random.default_rng(0).integers(3, 37, (rows, length)).astype(np.int32)
    batch = dict.fromkeys(("source", "target"), ids) | {
        f"{side}_{part}": jnp.broadcast_to(value, ids.shape)
        for side in ("source", "target")
        for part, value in (("segments", 1), ("positions", jnp.arange(length)))
    }
    params = nn.unbox(jax.jit(model.init)(jax.random.key(0), batch))["params"]

    def record(call, args, kwargs, context):
        out = call(*args, **kwargs)
        if isinstance(context.module, Dropout) and context.method_name == "__call__":
            before = args[0] != 0
            drops["/".join(context.module.path)] = jnp.sum(before & (out == 0)) / jnp.sum(before)
        return out

    @jax.jit
    def run(params):
        noise = Noise(noise_key(0, jnp.int32(3)), jnp.arange(rows, dtype=jnp.uint32))
        with nn.intercept_methods(record):
            model.apply({"params": params}, batch, noise)
        return dict(drops)

    return {site: float(share) for site, share in run(params).items()}


def test_dropout_acts_on_the_papers_two_sites_at_its_rate():
    """(5.4): sub-layer outputs before the sum, and the sum of embedding and position.

    Nowhere else by default.
    """
    shape = dict(
        d_model=64,
        d_ff=96,
        num_heads=4,
        num_encoder_layers=1,
        num_decoder_layers=1,
        pad_vocab_to_multiple=1,
    )
    drops = measured_drops(Model(**shape))
    layers = (
        "encoder_0/residual_attention",
        "encoder_0/residual_ffn",
        "decoder_0/residual_attention",
    )
    papers = {
        f"{name}/drop" for name in (*layers, "decoder_0/residual_cross", "decoder_0/residual_ffn")
    }
    papers |= {"source_dropout", "target_dropout"}
    assert {site for site, share in drops.items() if share > 0} == papers
    for site in papers:
        assert drops[site] == pytest.approx(0.1, abs=0.006), site
    others = measured_drops(Model(dropout_attention=0.2, dropout_ffn=0.3, **shape))
    expected = {
        "source_dropout": 0.1,
        "weight_dropout": 0.2,
        "hidden_dropout": 0.3,
        "drop": 0.1,
        "target_dropout": 0.1,
    }
    assert {site for site in others} == set(drops)
    for site, share in others.items():
        assert share == pytest.approx(expected[site.split("/")[-1]], abs=0.01), site
