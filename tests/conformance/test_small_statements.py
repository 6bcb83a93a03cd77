"""The paper's remarks about the model, one test each (sections in parentheses)."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import model_and_state, small_config

from t2t_flax.config import Config, Model, resolve
from t2t_flax.config.presets import preset
from t2t_flax.models import embeddings as positions
from t2t_flax.models.attention import MultiHeadAttention
from t2t_flax.models.layers import FeedForward
from t2t_flax.models.transformer import Transformer
from t2t_flax.training.train_state import count_params

SIDES = [side + part for side in ("source", "target") for part in ("", "_segments", "_positions")]


@functools.cache
def sizes_of_one_layer(config: Model) -> dict[str, int]:
    """Return parameter counts by top-level name: a layer per stack, vocabulary not padded."""
    vocab = 37
    model, ids = Transformer(config, vocab, vocab), jnp.ones((1, 8), jnp.int32)
    params = nn.unbox(
        jax.eval_shape(lambda: model.init(jax.random.key(0), dict.fromkeys(SIDES, ids)))
    )["params"]
    whole = dataclasses.replace(Config(), model=config)
    return {name: count_params({name: tree}, whole, vocab, vocab) for name, tree in params.items()}


def count(config: Model, vocab: int, *, stacks=("encoder", "decoder"), tables: bool = True) -> int:
    """Parameter count of the model: one layer per stack is built and counted N times."""
    sizes = sizes_of_one_layer(
        dataclasses.replace(config, num_encoder_layers=1, num_decoder_layers=1)
    )
    layers = {"encoder_0": config.num_encoder_layers, "decoder_0": config.num_decoder_layers}
    per_row = config.d_model
    total = 0
    for name, size in sizes.items():
        if name in layers:
            total += size * layers[name] * (name.removesuffix("_0") in stacks)
        elif tables:
            total += size + (vocab - 37) * per_row * name.endswith("_embedding")
    return total


def test_feed_forward_is_two_convolutions_of_width_one():
    """(3.3)"""
    module, x = (
        FeedForward(Model(d_model=8, d_ff=20)),
        jax.random.normal(jax.random.key(0), (2, 7, 8)),
    )
    params = nn.unbox(jax.jit(module.init)(jax.random.key(1), x, None))["params"]
    first, second = params["Einsum_0"], params["Einsum_1"]
    first["bias"], second["bias"] = (
        jax.random.normal(jax.random.key(n), (w,)) for n, w in ((2, 20), (3, 8))
    )

    def convolution(x, layer):
        return jax.lax.conv_general_dilated(
            x, layer["kernel"][None], (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
        ) + layer["bias"]  # fmt: skip

    expected = convolution(jnp.maximum(convolution(x, first), 0), second)
    np.testing.assert_allclose(module.apply({"params": params}, x, None), expected, atol=1e-5)


def test_output_matrix_sums_over_heads():
    """(3.2.2): Concat(head_1, ..., head_h) W_O = sum of head_i W_O_i.

    One head is isolated by zeroing the others' W_O.
    """
    config = Model(d_model=12, num_heads=3, d_k=5, d_v=2)
    module, x = MultiHeadAttention(config), jax.random.normal(jax.random.key(0), (2, 6, 12))
    mask = jnp.ones((2, 1, 6, 6), bool)
    params = nn.unbox(jax.jit(module.init)(jax.random.key(1), x, x, mask, None))["params"]
    apply = jax.jit(lambda p: module.apply({"params": p}, x, x, mask, None))

    def only(head):
        kernel = params["out"]["kernel"]
        return params | {"out": {"kernel": jnp.zeros_like(kernel).at[head].set(kernel[head])}}

    heads = [apply(only(head)) for head in range(3)]
    np.testing.assert_allclose(apply(params), sum(heads), atol=1e-5)
    q, k, v = (
        jnp.einsum("btd,dnh->bnth", x, params[name]["kernel"]) for name in ("query", "key", "value")
    )
    weights = jax.nn.softmax(q @ k.swapaxes(-1, -2) / 5**0.5, axis=-1)
    concatenated = (weights @ v).transpose(0, 2, 1, 3).reshape(2, 6, 6)
    np.testing.assert_allclose(
        apply(params), concatenated @ params["out"]["kernel"].reshape(6, 12), atol=1e-5
    )


@pytest.fixture(scope="module")
def distinct():
    """Return (model, parameters, batch): a padded pair.

    Each id occurs once, so each token has its own table row.
    """
    keys = dict(dropout=0.0, tie_embeddings="none")
    model, _, state, _ = model_and_state(small_config(model=keys))
    ids = np.random.default_rng(0).permutation(np.arange(3, 37))
    batch = {}
    for side, row in (("source", ids[:9]), ("target", ids[9:19])):
        batch[side] = np.array([[*row, 1, 0, 0]], np.int32)
        batch[f"{side}_segments"] = (batch[side] > 0).astype(np.int32)
        batch[f"{side}_positions"] = np.where(
            batch[side] > 0, np.arange(batch[side].shape[1]), 0
        ).astype(np.int32)
    return model, state.params, batch


def reach(outputs, params, table: str, ids):
    """[output position, token]: the norm of d output / d (the token's table row)."""
    outputs_of_table = lambda rows: outputs(params | {table: {"table": rows}})  # noqa: E731
    jacobian = jax.jit(jax.jacrev(outputs_of_table))(params[table]["table"])  # [L, rows, D]
    return np.asarray(jnp.linalg.norm(jacobian, axis=-1))[:, ids]


def random_sum(x_1xLxD):
    """Return a random combination of each position's features, [L].

    Their plain sum is constant after a LayerNorm.
    """
    return x_1xLxD[0] @ jax.random.normal(jax.random.key(5), x_1xLxD.shape[-1:])


def test_prediction_depends_on_exactly_the_earlier_targets(distinct):
    """(3.1)"""
    model, params, batch = distinct
    dependence = reach(
        lambda p: random_sum(model.apply({"params": p}, batch, method="hidden")),
        params, "target_embedding", batch["target"][0, :11],
    )[:11]  # fmt: skip
    before = np.tri(11, 11, -1, bool)
    assert (dependence[~before] == 0).all()
    assert (dependence[before] > 1e-6).all()


def test_everything_depends_on_every_source_token_and_no_padding(distinct):
    """(3.2.3)"""
    model, params, batch = distinct
    source = [batch[f"source{part}"] for part in ("", "_segments", "_positions")]
    of_source = dict(
        params=params, table="source_embedding", ids=np.append(batch["source"][0, :10], 0)
    )
    encoded = reach(
        lambda p: random_sum(model.apply({"params": p}, *source, method="encode"))[:10], **of_source
    )
    predicted = reach(
        lambda p: random_sum(model.apply({"params": p}, batch, method="hidden"))[:11], **of_source
    )
    for dependence in (encoded, predicted):
        assert (dependence[:, :10] > 1e-6).all() and (dependence[:, 10] == 0).all()


def test_eight_heads_cost_as_much_as_one_of_full_width():
    """(3.2.2), by the compiler's FLOP count of forward and backward."""
    x = jnp.ones((2, 64, 512))

    def operations(heads):
        module = MultiHeadAttention(Model(d_model=512, num_heads=heads))
        params = jax.eval_shape(
            module.init, jax.random.key(0), x, x, jnp.ones((1, 1, 64, 64), bool), None
        )
        total = lambda p: module.apply(p, x, x, jnp.ones((1, 1, 64, 64), bool), None).sum()  # noqa: E731
        return jax.jit(jax.grad(total)).lower(params).compile().cost_analysis()["flops"]

    assert operations(8) == pytest.approx(operations(1), rel=0.05)


def test_sinusoids_extend_beyond_trained_lengths(distinct):
    """(3.5): sentences may be longer than in training, unlike with learned positions."""
    model, params, _ = distinct
    ids = np.random.default_rng(1).integers(3, 37, (1, 700)).astype(np.int32)
    encode = jax.jit(
        lambda params, *source: model.apply({"params": params}, *source, method="encode")
    )
    assert np.isfinite(encode(params, ids, np.ones_like(ids), np.arange(700)[None])).all()


def test_sinusoid_offset_is_a_rotation_of_each_pair():
    """PE[pos + k] rotates (sin, cos) of each frequency by k times the frequency (3.5)."""
    pairs = np.asarray(positions.sinusoid_interleaved(jnp.arange(300), 64), np.float64).reshape(
        300, 32, 2
    )
    frequency = 10000.0 ** (-np.arange(32) / 32)
    for k in (1, 10, 200):
        cos, sin = np.cos(k * frequency), np.sin(k * frequency)
        x, y = pairs[:100, :, 0], pairs[:100, :, 1]
        turned = np.stack([cos * x + sin * y, cos * y - sin * x], axis=-1)
        np.testing.assert_allclose(turned, pairs[k : 100 + k], atol=3e-5)


def test_sinusoid_wavelengths_run_from_two_pi_to_20000_pi():
    """(3.5): the longest wavelength is one step of the geometric progression below 10000 * 2 pi."""
    first = np.asarray(positions.sinusoid_interleaved(jnp.arange(2), 512), np.float64)[1, 0::2]
    wavelengths = 2 * np.pi / np.arcsin(first[1:])
    ratios = wavelengths[1:] / wavelengths[:-1]
    assert np.arcsin(first[0]) == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(ratios, 10000 ** (2 / 512), rtol=1e-4)
    assert wavelengths[-1] * ratios[-1] == pytest.approx(10000 * 2 * np.pi, rel=1e-3)


# Sizes: millions of parameters with 37,000 rows, one shared matrix and no biases in attention.
DERIVED = {
    "base": 63.05, "a_h1": 63.05, "a_h4": 63.05, "a_h16": 63.05, "a_h32": 63.05, "b_dk16": 55.97, "b_dk32": 58.33,
    "c_n2": 33.64, "c_n4": 48.35, "c_n8": 77.75, "c_d256": 26.82, "c_d1024": 163.82, "c_ff1024": 50.45,
    "c_ff4096": 88.24, "e_learned": 63.05 + 2 * 1024 * 512 / 1e6, "big": 214.17,
}  # fmt: skip
BODIES = {"base": 44_101_632, "big": 176_283_648}  # without the table


def counted_by_hand(m: Model, vocab: int) -> int:
    """Computed from the formulas of section 3 and of the variants."""
    d, d_k, d_v = m.d_model, m.d_k or m.d_model // m.num_heads, m.d_v or m.d_model // m.num_heads
    attention = (m.num_heads + (m.num_kv_heads or m.num_heads)) * d * (d_k + d_v)
    feed_forward = 3 * d * m.d_ff if m.feed_forward == "gated" else 2 * d * m.d_ff + m.d_ff + d
    norm = d if m.norm_type == "rmsnorm" else 2 * d
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    tables = vocab * d + (2 * m.max_positions * d if m.position == "learned" else 0)
    final_norms = 2 * norm if m.norm_placement == "pre" else 0
    return tables + m.num_encoder_layers * encoder + m.num_decoder_layers * decoder + final_norms


@pytest.mark.parametrize(
    ("keys", "millions"),
    [
        (
            dict(num_kv_heads=2),
            55.97,
        ),  # 18 attentions: 3/4 of the 2 * 512^2 key and value weights fewer
        (dict(num_kv_heads=1), 54.79),
    ],
    ids=str,
)
def test_parameters_of_the_base_model_with_one_part_replaced(keys, millions):
    total = count(Model(**keys), 37_000)
    assert total == counted_by_hand(Model(**keys), 37_000)
    assert total / 1e6 == pytest.approx(millions, abs=0.006)


@pytest.mark.parametrize("row", DERIVED)
def test_parameters_outputs_of_table_3(row):
    model = resolve(preset(f"table3_{row}")).model
    total = count(model, 37_000)
    assert total == counted_by_hand(model, 37_000)
    assert total / 1e6 == pytest.approx(DERIVED[row], abs=0.006)
    if row in BODIES:
        assert total - 37_000 * model.d_model == BODIES[row]


@pytest.mark.parametrize(
    ("name", "vocab", "parameters"),
    [("t2t_v3", 32_768, 60.88), ("fairseq_scaling_nmt", 32_768, 209.91), ("flax_wmt", 32_000, 209.06), ("wu2021_tiny", 9708, 2.57),
     ("algoperf_wmt", 32_000, 133.52), ("algoperf_wmt_schedule_free", 32_000, 133.52)],
)  # fmt: skip
def test_parameters_of_other_codebases_presets(name, vocab, parameters):
    """In millions."""
    assert count(resolve(preset(name)).model, vocab) / 1e6 == pytest.approx(parameters, abs=0.006)


@pytest.mark.parametrize(("name", "body"), [("bert_base", 85_054_464), ("bert_large", 302_309_376)])
def test_parameters_of_berts_encoder(name, body):
    assert count(resolve(preset(name)).model, 0, stacks=("encoder",), tables=False) == body
