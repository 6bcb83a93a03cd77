"""The kernel for TPU, interpreted on the CPU, beside plain products; on meshes.

And where einsum stays.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import devices_mesh, model_and_state, small_config
from helpers.refusals import assert_names

from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.extensions.kernels import splash
from t2t_flax.models.attention import SegmentMask, mask_array, masked_softmax
from t2t_flax.models.dropout import Noise, noise_key
from t2t_flax.training.attention_kernel import attention_kernel
from t2t_flax.training.losses import loss_sums
from t2t_flax.training.precision import compute_dtype
from t2t_flax.training.train_state import make_model

VOCAB = 37


def segments(rows: int, length: int, ends: tuple[int, ...]) -> np.ndarray:
    """Rows of len(ends) pairs that end at `ends` (one less in each further row), then padding."""
    row_end = np.array(ends) - np.arange(rows)[:, None]
    ids = (np.arange(length) >= row_end[:, :, None]).sum(1) + 1
    return np.where(ids > len(ends), 0, ids).astype(np.int32)


def plain_attention(q, k, v, mask: SegmentMask):
    """In float32."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    weights = masked_softmax(
        jnp.einsum("btnh,bsnh->bnts", q, k) * q.shape[-1] ** -0.5, mask_array(mask)
    )
    return jnp.einsum("bnts,bsnh->btnh", weights, v)


def operands(
    *, rows=2, queries=128, keys=128, heads=2, key_heads=2, width=64, dtype="float32", causal=False
):
    """(q, k, v, mask) of packed rows with two pairs and padding at the end."""
    rng = np.random.default_rng(0)
    sizes = ((queries, heads), (keys, key_heads), (keys, key_heads))
    q, k, v = (jnp.asarray(rng.normal(size=(rows, n, h, width)), dtype) for n, h in sizes)
    ids = segments(rows, queries, (queries // 3, queries - 20))
    return (
        q,
        k,
        v,
        SegmentMask(
            ids, ids if keys == queries else segments(rows, keys, (keys // 2, keys - 9)), causal
        ),
    )


def value_and_gradients(attend, q, k, v, mask: SegmentMask):
    """A scalar of what real queries get, and its gradients.

    Padding counts nowhere, as in the loss.
    """
    real = (mask.query_segments > 0)[..., None, None]

    def scalar(q, k, v):
        out = attend(q, k, v, mask).astype(jnp.float32)
        return jnp.sum(jnp.sin(jnp.where(real, out, 0.0) + 1.0)), jnp.where(real, out, 0.0)

    (_, out), gradients = jax.jit(jax.value_and_grad(scalar, argnums=(0, 1, 2), has_aux=True))(
        q, k, v
    )
    return out, *gradients


interpreted = functools.partial(splash.attend, scaled=True, interpret=True)


@pytest.mark.parametrize(
    "shape",
    [
        dict(),
        pytest.param(dict(causal=True), marks=pytest.mark.smoke),
        dict(queries=256, keys=128),
        dict(key_heads=1, causal=True),
        dict(width=128, rows=1),
        dict(queries=640, keys=640, rows=1, heads=1, key_heads=1, causal=True),  # five blocks
        dict(dtype="bfloat16", causal=True),
    ],
    ids=str,
)
def test_output_and_gradients_of_packed_rows_equal_plain_products(shape):
    args = operands(**shape)
    tolerance = dict(rtol=2e-2, atol=2e-2) if shape.get("dtype") else dict(rtol=1e-5, atol=1e-5)
    expected = value_and_gradients(plain_attention, *args)
    for x, y in zip(value_and_gradients(interpreted, *args), expected, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(
            np.asarray(x, np.float32), np.asarray(y, np.float32), **tolerance
        )


@pytest.mark.parametrize("mesh", [(4, 1, 1), (2, 2, 2)])
def test_each_device_attends_to_its_rows_and_heads_without_an_exchange(mesh):
    q, k, v, mask = operands(rows=4)
    expected = value_and_gradients(interpreted, q, k, v, mask)
    mesh = devices_mesh(*mesh)
    place = mesh_lib.named(mesh, jax.sharding.PartitionSpec(("data", "fsdp"), None, "tensor", None))
    with mesh_lib.use(mesh):
        divided = [jax.device_put(x, place) for x in (q, k, v)]
        program = (
            jax.jit(lambda q, k, v: value_and_gradients(interpreted, q, k, v, mask))
            .lower(*divided)
            .compile()
        )
        results = program(*divided)
    for x, y in zip(results, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)
    assert not re.search("all-(gather|reduce|to-all)|collective-permute", program.as_text())


@pytest.mark.parametrize(
    ("shape", "taken"), [((2, 1, 2), True), ((4, 1, 1), False), ((1, 1, 4), False)]
)
def test_rows_and_heads_that_the_mesh_does_not_divide_stay_with_einsum(shape, taken):
    q, k, v, mask = operands()
    assert splash.takes(q, k, v, mask)
    with mesh_lib.use(devices_mesh(*shape)):
        assert splash.takes(q, k, v, mask) == taken


@pytest.fixture
def calls(monkeypatch):
    """Shapes of the queries of each call of the kernel, which is interpreted."""
    shapes = []

    def attend(q, *args, **kwargs):
        shapes.append(q.shape)
        return on_cpu(q, *args, interpret=True, **kwargs)

    on_cpu = splash.attend
    monkeypatch.setattr(splash, "attend", attend)
    return shapes


def packed_batch(rows: int, length: int) -> dict[str, np.ndarray]:
    rng, batch = np.random.default_rng(1), {}
    for side, ends in (
        ("source", (length // 2, length - 9)),
        ("target", (length // 3, length - 20)),
    ):
        ids = segments(rows, length, ends)
        starts = np.concatenate([np.zeros((rows, 1), bool), np.diff(ids) != 0], axis=1)
        position = np.arange(length) - np.maximum.accumulate(
            np.where(starts, np.arange(length), 0), axis=1
        )
        tokens = np.where(ids > 0, rng.integers(3, VOCAB, ids.shape), 0).astype(np.int32)
        batch |= {
            side: tokens,
            f"{side}_segments": ids,
            f"{side}_positions": position.astype(np.int32),
        }
    return batch


def loss_of(
    kernel: str, *, platform: str = "tpu", noise=None, precision="bfloat16", length=128, **keys
):
    """(loss of packed rows as a function of the parameters, parameters)"""
    model_keys = dict(dropout=0.0, d_model=128, num_heads=2, attention_kernel=kernel) | keys
    config = small_config(
        model=model_keys, train=dict(precision=precision), layer_types=dict(window=3)
    )
    _, _, state, _ = model_and_state(config)
    model = make_model(config, VOCAB, VOCAB, platform=platform)
    return lambda params: loss_sums(config, model, params, packed_batch(2, length), noise)[
        0
    ], state.params


def test_model_with_the_kernel_equals_the_model_with_einsum(calls):
    """Encoder, decoder and cross-attention.

    Loss to 0.1 %, gradients to 3 % of their norms, all in bfloat16.
    """
    function, params = loss_of("splash")
    loss, gradients = jax.jit(jax.value_and_grad(function))(params)
    assert calls == [(2, 128, 2, 64)] * 3
    expected_loss, expected = jax.jit(jax.value_and_grad(loss_of("einsum")[0]))(params)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-3)
    total = lambda tree: jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(tree)))  # noqa: E731
    assert total(jax.tree.map(jnp.subtract, gradients, expected)) < 0.03 * total(expected)


@pytest.mark.parametrize(
    ("keys", "fused"),
    [
        (dict(num_kv_heads=1), 3),
        (dict(position="alibi"), 1),  # cross-attention
        (dict(mixer="local_attention"), 1),  # cross-attention
        (dict(attention_score="additive"), 0),
        (dict(dropout_attention=0.1), 0),
        (dict(num_heads=4), 0),  # of width 32
        (dict(length=96), 0),
    ],
)
def test_einsum_stays_where_the_kernel_does_not_apply(calls, keys, fused):
    noise = Noise(noise_key(0, 0), np.arange(2, dtype=np.uint32))
    jax.eval_shape(*loss_of("splash", noise=noise, **keys))
    assert len(calls) == fused


def test_einsum_stays_where_weights_are_collected_and_in_decoding(calls):
    config = small_config(
        model=dict(dropout=0.0, d_model=128, num_heads=2, attention_kernel="splash"),
        train=dict(precision="bfloat16"),
    )
    _, _, state, _ = model_and_state(config)
    model = make_model(config, VOCAB, VOCAB, platform="tpu")
    batch, variables = packed_batch(2, 128), {"params": state.params}
    jax.eval_shape(lambda: model.apply(variables, batch, mutable=["intermediates"]))
    assert not calls

    def step():
        cache = model.apply(variables, batch["source"], 128, 128, method="start_cache")
        del calls[:]  # of the encoder
        return model.apply(
            variables, batch["source"][:, :128], jnp.asarray(3), cache, method="decode_step"
        )

    jax.eval_shape(step)
    assert not calls


@pytest.mark.parametrize(
    ("wanted", "platform", "keys", "kernel", "because"),
    [
        ("auto", "gpu", {}, "cudnn", ()),
        ("auto", "tpu", {"data.pack_length": 512}, "splash", ()),
        ("auto", "tpu", {"data.pack_length": 256}, "einsum", ("splash", "256")),
        ("splash", "tpu", {"data.pack_length": 256}, "splash", ()),
        ("auto", "cpu", {}, "einsum", ("cpu",)),
        ("auto", "gpu", {"train.precision": "float32"}, "einsum", ("train.precision",)),
        ("splash", "tpu", {"train.precision": "float32"}, "einsum", ("train.precision",)),
        ("auto", "gpu", {"model.dropout_attention": 0.1}, "einsum", ("model.dropout_attention",)),
        (
            "auto",
            "gpu",
            {"model.attention_score": "additive"},
            "einsum",
            ("model.attention_score",),
        ),
        ("splash", "gpu", {}, "einsum", ("splash", "gpu")),
        ("cudnn", "tpu", {}, "einsum", ("cudnn", "tpu")),
        ("einsum", "tpu", {}, "einsum", ("model.attention_kernel",)),
    ],
)
def test_kernel_is_chosen_by_what_it_computes(wanted, platform, keys, kernel, because):
    config = small_config(
        model=dict(attention_kernel=wanted), train=dict(precision="bfloat16")
    ).with_values(keys)
    assert make_model(config, VOCAB, VOCAB, platform=platform).config.attention_kernel == kernel
    found, reason = attention_kernel(config, compute_dtype(config.train.precision), platform)
    assert found == kernel and bool(reason) == (kernel == "einsum")
    assert_names(reason, *because)
