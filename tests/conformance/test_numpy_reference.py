"""The model against a NumPy float64 forward pass, for every preset and for other keys."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import numpy_transformer as reference
from helpers.configs import VOCAB, random_pairs, rows_alone

from t2t_flax.config import Model, resolve
from t2t_flax.config.presets import preset, presets
from t2t_flax.models.transformer import Transformer
from t2t_flax.training.losses import smoothed_cross_entropy

# Keys that change sizes, initialization or training but not the formulas of the forward pass.
SMALL = dict(d_model=16, d_ff=24, num_heads=4, max_positions=64, dropout=0.0, dropout_attention=0.0,
             dropout_ffn=0.0, embed_init="normal_rsqrt_d", kernel_init="xavier")  # fmt: skip


def small(m: Model) -> Model:
    """The config at a small size.

    One layer per stack, d_k and d_v set only if the config sets them.
    """
    widths = dict(d_k=3 * bool(m.d_k), d_v=5 * bool(m.d_v))
    return dataclasses.replace(m, **SMALL | widths, num_encoder_layers=1, num_decoder_layers=1)


EXTRA = (
    dict(d_k=3, d_v=5, tie_embeddings="decoder", decoder_start_token="bos", activation="gelu"),
    dict(attention_score="dot", norm_placement="pre", final_norm="none", position="none", output_bias=True,
         tie_embeddings="none"),
    dict(final_norm="both", activation="swish", position="learned", norm_eps=1e-2, embed_scale="none"),
    dict(norm_placement="pre", logit_scale="rsqrt_d", position_offset=1, attention_bias=True),
    dict(attention_bias=True, num_encoder_layers=2, num_decoder_layers=2, pad_vocab_to_multiple=1),
    dict(num_kv_heads=2, attention_score="dot", attention_bias=True, d_k=3, d_v=5),
    dict(num_heads=6, num_kv_heads=1, d_k=4, d_v=4, num_decoder_layers=2),
)  # fmt: skip
TINY = small(Model())


def cases() -> dict[Model, list[str]]:
    """Preset names by small model: presets with the same formulas share one."""
    names: dict[Model, list[str]] = {}
    for name in presets():
        names.setdefault(small(resolve(preset(name)).model), []).append(name)
    for keys in EXTRA:
        names.setdefault(dataclasses.replace(TINY, **keys), []).append(
            "-".join(map(str, keys.values()))
        )
    return names


CASES = cases()


def random_params(model: Transformer, seed: int):
    """Random float32 parameters of the model's shapes; none is 0 or 1, which would hide it."""
    ids = jnp.ones((1, 8), jnp.int32)
    names = [
        side + part for side in ("source", "target") for part in ("", "_segments", "_positions")
    ]
    shapes = nn.unbox(
        jax.eval_shape(lambda: model.init(jax.random.key(0), dict.fromkeys(names, ids)))
    )["params"]
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        name, x = path[-1].key, rng.normal(size=leaf.shape)
        if name == "scale":
            return 1 + 0.3 * x
        if name in ("bias", "output_bias", "v"):
            return 0.3 * x
        if name == "kernel":
            fan_in = np.prod(leaf.shape[:-1]) if path[-2].key == "out" else leaf.shape[0]
            return x * fan_in**-0.5
        # Tables and the start vector, scaled so that logits are of order 1.
        return x if model.config.logit_scale == "rsqrt_d" else x * leaf.shape[-1] ** -0.5

    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: draw(path, leaf).astype(np.float32), shapes
    )


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, params, batch):
    return model.apply({"params": params}, batch)


@pytest.mark.parametrize("config", CASES, ids=lambda m: "+".join(CASES[m])[:60])
def test_logits_equal_numpys(config):
    compare_with_numpy(config, seed=len(CASES[config][0]))


def compare_with_numpy(config: Model, seed: int) -> None:
    """Logits of padded rows with random parameters, to 1e-5."""
    model = Transformer(config, VOCAB, VOCAB)
    params = random_params(model, seed)
    pairs = random_pairs(2, seed=3, longest=12)
    # All sentences are padded, by different amounts.
    assert len({len(sentence) for pair in pairs for sentence in pair}) == 4
    batch = rows_alone(pairs, 13)
    logits = np.asarray(logits_of(model, params, batch), np.float64)
    assert (
        logits.shape[-1] == -(-VOCAB // config.pad_vocab_to_multiple) * config.pad_vocab_to_multiple
    )
    assert (logits[..., VOCAB:] == -1e9).all()
    exact = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    for row, (source, target) in zip(logits, pairs, strict=True):
        expected = reference.forward(exact, config, np.array(source), np.array(target), VOCAB)
        assert 0.3 < expected.std() < 10
        np.testing.assert_allclose(row[: len(target), :VOCAB], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("mass", "eps"), [("all", 0.0), ("all", 0.1), ("non_target", 0.4)])
def test_smoothed_loss_and_its_gradient(mass, eps):
    """Loss: cross-entropy with the smoothed target.

    Gradient: softmax - smoothed target, 0 at padding.
    """
    rng = np.random.default_rng(0)
    vocab, rows = 11, 16
    logits = np.full((2, 4, rows), -1e9)
    logits[..., :vocab] = rng.normal(size=(2, 4, vocab)) * 2
    logits = logits.astype(np.float32)
    targets = rng.integers(1, vocab, (2, 4))
    weights = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], np.float32)

    def loss(x):
        return smoothed_cross_entropy(eps, mass, vocab, x, targets, weights)

    (total, others), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(logits)
    flat = logits[..., :vocab].reshape(-1, vocab).astype(np.float64)
    flat_targets = targets.ravel(), weights.ravel()
    assert float(total) == pytest.approx(
        reference.smoothed_loss(flat, *flat_targets, eps, mass), rel=1e-6
    )
    assert float(others["nll"]) == pytest.approx(
        reference.smoothed_loss(flat, *flat_targets, 0.0, "all"), rel=1e-6
    )

    smoothed = np.stack([reference.smoothed_target(t, vocab, eps, mass) for t in targets.ravel()])
    np.testing.assert_allclose(smoothed.sum(-1), 1.0, rtol=1e-12)
    analytic = (reference.softmax(flat) - smoothed) * weights.reshape(-1, 1)
    np.testing.assert_allclose(
        np.asarray(gradient)[..., :vocab].reshape(-1, vocab), analytic, rtol=0, atol=1e-6
    )
    assert not np.asarray(gradient)[..., vocab:].any()
    for row in (0, 5, 7):
        for v in (0, targets.ravel()[row], 10):
            step = np.zeros_like(flat)
            step[row, v] = 1e-5
            up, down = (
                reference.smoothed_loss(flat + s * step, *flat_targets, eps, mass) for s in (1, -1)
            )
            assert (up - down) / 2e-5 == pytest.approx(analytic[row, v], abs=1e-8)
