"""Packing, causality and caching of each mixer, and of other attention, in the whole model."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import VOCAB, devices_mesh, random_pairs, rows_alone, small_config, write_store

from t2t_flax.config import Model
from t2t_flax.data.batching.batches import validation_batches
from t2t_flax.decoding.search_loop import grow
from t2t_flax.extensions.layer_types import LayerTypes
from t2t_flax.extensions.layer_types.mixers import LONGEST_DILATED, dilation
from t2t_flax.models.attention import MixerInputs, make_mixer
from t2t_flax.registry import load_extensions
from t2t_flax.training.prefetcher import put_batch
from t2t_flax.training.train_state import make_model

# Kinds that share code with another one are tested as slow.
KINDS = {
    "window": dict(mixer="local_attention", position="rotary", num_kv_heads=2, attention_bias=True),
    "rotary": dict(position="rotary", num_kv_heads=2, norm_type="rmsnorm", norm_placement="pre", feed_forward="gated",
                   activation="swish"),
    "alibi": dict(position="alibi", num_kv_heads=1, mixer="local_attention", attention_score="dot", d_k=3, d_v=5,
                  feed_forward="gated", activation="gelu"),
    "additive": dict(position="alibi", mixer="local_attention", attention_score="additive"),
    "lstm": dict(mixer="lstm"),
    "gru": dict(mixer="gru"),
    "conv": dict(mixer="conv"),
    "dilated_conv": dict(mixer="dilated_conv", norm_placement="pre", num_encoder_layers=2, num_decoder_layers=2),
}  # fmt: skip
SLOW = ("additive", "gru", "conv")
load_extensions()
ROWS, ROW = 24, 48  # long enough for bands in encoder and decoder


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=[pytest.mark.slow] * (kind in SLOW)) for kind in KINDS],
)
def model_and_params(request):
    """(model, params), biases and norms away from 0 and 1."""
    model = make_model(
        small_config(model=KINDS[request.param] | dict(dropout=0.0), layer_types=dict(window=5)),
        VOCAB,
        VOCAB,
    )
    noise = 0.2 * np.random.default_rng(7).normal(size=10_000).astype(np.float32)
    params = jax.jit(
        lambda: nn.unbox(model.init(jax.random.key(0), rows_alone([([1], [1])], 8))["params"])
    )()
    return model, jax.tree.map(
        lambda x: x + noise[: x.size].reshape(x.shape) if x.ndim == 1 else x, params
    )


@functools.partial(jax.jit, static_argnums=(0, 3, 4))
def start_cache(model, params, source, beams, length):
    return model.apply({"params": params}, source, beams, length, method="start_cache")


@functools.partial(jax.jit, static_argnums=0)
def _scored(model, params, batch):
    def total(params):
        logits = model.apply({"params": params}, batch)
        gold = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["target"][..., None], -1)[
            ..., 0
        ]
        gold = gold * (batch["target_segments"] > 0)
        return gold.sum(), (gold, logits)

    return jax.value_and_grad(total, has_aux=True)(params)


def scored(model, params, batch):
    """(sum, each [B, T]) of the targets' log-probabilities, logits, gradient of the sum.

    One shape for all tests.
    """
    batch = {
        k: np.pad(x, [(0, ROWS - x.shape[0]), (0, ROW - x.shape[1])]) for k, x in batch.items()
    }
    (total, (gold, logits)), grads = _scored(model, params, batch)
    return total, gold, logits, grads


def test_packed_pairs_have_the_scores_and_gradients_of_single_pairs(model_and_params, tmp_path):
    model, params = model_and_params
    pairs = random_pairs(ROWS, longest=22)
    store = write_store(tmp_path / "store", pairs)
    ((_, batches),) = validation_batches(
        store, small_config(data=dict(pack_length=ROW, batch_tokens=ROWS * ROW)).data
    )
    (batch,) = batches()
    arrays = {k: np.asarray(x)[0] for k, x in put_batch(batch, devices_mesh()).arrays.items()}
    assert arrays["target_segments"].max() >= 3
    assert int((arrays["target_segments"] > 0).sum()) == sum(len(t) for _, t in pairs)
    packed, *_, grads = scored(model, params, arrays)
    separate, *_, grads_alone = scored(model, params, rows_alone(pairs, ROW))
    np.testing.assert_allclose(packed, separate, rtol=1e-6)
    for (path, a), b in zip(
        jax.tree.leaves_with_path(grads), jax.tree.leaves(grads_alone), strict=True
    ):
        scale = float(jnp.abs(b).max())
        np.testing.assert_allclose(
            a, b, atol=2e-4 * scale + 1e-6, err_msg=jax.tree_util.keystr(path)
        )
        assert scale > 0, f"no gradient reaches {jax.tree_util.keystr(path)}"


def test_cached_decoding_equals_recomputing_the_prefix(model_and_params):
    """With a cache that grows in between, as in a search."""
    model, params = model_and_params
    targets = [target for _, target in random_pairs(3, longest=40, seed=1)]
    pairs = [
        (source, target)
        for (source, _), target in zip(random_pairs(3, longest=12), targets, strict=True)
    ]
    batch = rows_alone(pairs, ROW)
    *_, full, _ = scored(model, params, batch)
    cache = start_cache(model, params, batch["source"][:, :16], 3, 8)
    decode_step = jax.jit(
        lambda *args: model.apply({"params": params}, *args, method="decode_step")
    )
    for position in range(max(map(len, targets))):
        if position == 8:
            cache |= {"self": grow(cache["self"], ROW)}
        previous = batch["target"][:, position - 1] if position else np.zeros(3, np.int32)
        step, cache = decode_step(np.stack([previous] * 3, axis=1), jnp.int32(position), cache)
        for i, target in enumerate(targets):
            if position < len(target):
                np.testing.assert_allclose(step[i, 0], full[i, position], atol=3e-5)


def one_segment(length: int) -> MixerInputs:
    return MixerInputs(jnp.ones((1, length), jnp.int32), jnp.arange(length)[None])


@pytest.mark.parametrize(
    ("mixer", "depth", "causal", "offsets"),
    [
        ("conv", 0, False, (-1, 0, 1)),
        ("conv", 0, True, (-2, -1, 0)),
        ("dilated_conv", 1, True, (-6, -3, 0)),
        ("dilated_conv", 2, False, (-9, 0, 9)),
    ],
)
def test_convolutions_add_the_inputs_at_their_offsets(mixer, depth, causal, offsets):
    """Oracle: a loop over positions and taps, with NumPy."""
    keys = (("layer_types", LayerTypes(conv_kernel_size=3)),)
    config = Model(d_model=4, num_heads=2, mixer=mixer, extensions=keys)
    module = make_mixer(config, jnp.dtype("float32"), causal=causal, depth=depth)
    x = jax.random.normal(jax.random.key(0), (1, 20, 4))
    out, variables = jax.jit(module.init_with_output)(jax.random.key(1), x, one_segment(20))
    kernel = np.asarray(nn.unbox(variables)["params"]["taps"]["kernel"])
    for t in range(20):
        seen = [
            (x[0, t + offset], tap)
            for offset, tap in zip(offsets, kernel, strict=True)
            if 0 <= t + offset < 20
        ]
        np.testing.assert_allclose(out[0, t], sum(row @ tap for row, tap in seen), atol=1e-5)


@pytest.mark.parametrize("width", [3, 5, 7])
def test_dilations_cycle_through_powers_of_the_width(width):
    dilations = [dilation(width, depth) for depth in range(20)]
    levels = dilations.index(1, 1)
    assert dilations[:levels] == [width**i for i in range(levels)]
    assert dilations[levels : 2 * levels] == dilations[:levels]
    assert width**levels >= LONGEST_DILATED > width ** (levels - 1)


@pytest.mark.parametrize("mixer", ["lstm", "gru"])
def test_recurrent_state_is_float32_under_bfloat16(mixer):
    config, x = Model(d_model=16, num_heads=4, mixer=mixer), jnp.ones((1, 4, 16), jnp.bfloat16)
    module = make_mixer(config, jnp.dtype("bfloat16"), causal=True, depth=0)

    def run(key):
        out, params = module.init_with_output(key, x, one_segment(4))
        cache = module.apply(params, 1, 4, 8, method="empty_cache")
        return out, *module.apply(params, x, cache, 0, method="step")

    whole, step, cache = jax.eval_shape(run, jax.random.key(0))
    assert whole.dtype == step.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(cache)} == {jnp.dtype("float32")}
