"""What is sent to cuDNN's kernel, by the same function's plain implementation.

And where einsum stays.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import devices_mesh, model_and_state, random_pairs, rows_alone, small_config
from helpers.refusals import assert_names
from jax._src.cudnn import fused_attention_stablehlo as jax_kernel
from jax.experimental.compilation_cache import compilation_cache

from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.evaluation.restore import decoding_model
from t2t_flax.extensions.kernels import cudnn
from t2t_flax.models.attention import SegmentMask
from t2t_flax.models.dropout import Noise, noise_key
from t2t_flax.training.attention_kernel import explain_attention
from t2t_flax.training.losses import loss_sums
from t2t_flax.training.precision import compute_dtype
from t2t_flax.training.train_state import make_model

VOCAB = 37


@pytest.fixture
def calls(monkeypatch):
    """Shapes of the queries of each fused attention, which runs as XLA's."""
    shapes, plain = [], jax.nn.dot_product_attention

    def attention(q, *args, implementation, **kwargs):
        assert implementation == "cudnn"
        shapes.append(q.shape)
        return plain(q, *args, implementation="xla", **kwargs)

    monkeypatch.setattr(cudnn.jax.nn, "dot_product_attention", attention)
    return shapes


def packed_rows(rows: int) -> dict[str, np.ndarray]:
    """Two pairs in each row, with padding after each."""
    first, second = (rows_alone(random_pairs(rows, seed=seed, longest=11), 12) for seed in (0, 1))
    second = {name: x * 2 if "segments" in name else x for name, x in second.items()}
    return {name: np.concatenate([first[name], second[name]], axis=1) for name in first}


def loss_of(kernel: str, *, platform: str = "gpu", noise=None, precision="bfloat16", **keys):
    """(loss of packed rows as a function of the parameters, parameters)"""
    model_keys = dict(dropout=0.0, num_heads=2, attention_kernel=kernel) | keys
    config = small_config(
        model=model_keys, train=dict(precision=precision), layer_types=dict(window=3)
    )
    _, _, state, _ = model_and_state(config)
    model = make_model(config, VOCAB, VOCAB, platform=platform)
    return lambda params: loss_sums(config, model, params, packed_rows(4), noise)[0], state.params


@pytest.mark.parametrize(
    "keys", [{}, dict(num_kv_heads=1), dict(position="rotary"), dict(attention_score="dot")]
)
def test_fused_attention_of_packed_rows_equals_einsum(calls, keys):
    """Encoder, decoder and cross-attention.

    Loss to 0.1 %, gradients to 3 % of their norms, all in bfloat16.
    """
    function, params = loss_of("cudnn", **keys)
    loss, gradients = jax.jit(jax.value_and_grad(function))(params)
    assert calls == [(4, 24, 2, 8)] * 3
    expected_loss, expected = jax.jit(jax.value_and_grad(loss_of("einsum", **keys)[0]))(params)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-3)
    total = lambda tree: jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(tree)))  # noqa: E731
    assert total(jax.tree.map(jnp.subtract, gradients, expected)) < 0.03 * total(expected)


@pytest.mark.parametrize(
    ("keys", "fused"),
    [
        (dict(position="alibi"), 1),  # cross-attention
        (
            dict(mixer="local_attention"),
            2,
        ),  # and the encoder, whose bands would save nothing in such short rows
        (dict(attention_score="additive"), 0),
        (dict(dropout_attention=0.1), 0),
        (dict(num_heads=4), 0),  # of width 4
        (dict(d_v=16), 0),
    ],
)
def test_einsum_stays_where_the_kernel_does_not_apply(calls, keys, fused):
    noise = Noise(noise_key(0, 0), np.arange(4, dtype=np.uint32))
    jax.eval_shape(*loss_of("cudnn", noise=noise, **keys))
    assert len(calls) == fused


@pytest.mark.parametrize("devices", [(4, 1, 1), (1, 4, 1), (2, 1, 2), (1, 1, 4)])
def test_the_kernel_is_mapped_over_the_shards_of_a_batch(devices, monkeypatch):
    """JAX's own rules for its kernel, traced without a GPU; forward and backward."""
    monkeypatch.setattr(jax_kernel, "check_cudnn_version", lambda: 91200)
    rows = {
        "q": jax.ShapeDtypeStruct((8, 16, 4, 8), jnp.bfloat16),
        "segments": jax.ShapeDtypeStruct((8, 16), jnp.int32),
    }

    def gradient(params, rows):
        mask = SegmentMask(rows["segments"], rows["segments"], causal=True)
        loss = lambda q: (q * cudnn.attend(q, q, q, mask, scaled=True)).astype(jnp.float32).sum()  # noqa: E731
        return jax.grad(loss)(rows["q"])

    shards = devices[0] * devices[1]
    with mesh_lib.use(devices_mesh(*devices)):
        found = jax.eval_shape(mesh_lib.over_shards(gradient, shards), {}, rows)
    assert found.shape == ((shards, 8 // shards, 16, 4, 8) if shards > 1 else (8, 16, 4, 8))


@pytest.fixture
def kept(tmp_path):
    """The folder of JAX's cache of compiled programs."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    compilation_cache.reset_cache()
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


def test_programs_with_the_kernel_are_not_kept(calls, kept, monkeypatch):
    """Those that JAX reads from its cache fail on GPUs."""
    run = lambda factor: jax.jit(lambda x: x * factor)(1.0)  # noqa: E731
    run(1.5)
    count = len(list(kept.iterdir()))
    jax.eval_shape(*loss_of("cudnn"))  # as `plan` does, where no GPU is
    run(2.5)
    assert 0 < count < len(list(kept.iterdir()))
    count = len(list(kept.iterdir()))
    function, params = loss_of("cudnn")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    jax.eval_shape(function, params)
    run(3.5)
    assert calls and len(list(kept.iterdir())) == count


@pytest.mark.parametrize(
    ("capability", "flags", "kernel"),
    [
        ("9.0", "", "cudnn"),
        ("10.3", "--xla_gpu_deterministic_ops=false", "cudnn"),
        ("9.0", "--xla_gpu_deterministic_ops=true", "einsum"),
        ("9.0", "--xla_gpu_exclude_nondeterministic_ops", "einsum"),
        ("7.5", "", "einsum"),
        ("gfx90a", "", "einsum"),
    ],
)
def test_kernel_needs_a_gpu_and_flags_that_run_it(monkeypatch, capability, flags, kernel):
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(
        jax, "local_devices", lambda: [SimpleNamespace(compute_capability=capability)]
    )
    for wanted in ("auto", "cudnn"):
        config = small_config(model=dict(attention_kernel=wanted), train=dict(precision="bfloat16"))
        assert make_model(config, VOCAB, VOCAB).config.attention_kernel == kernel


def test_a_run_that_decodes_has_einsum(monkeypatch):
    """So do analyses that read attention weights. JAX keeps their programs."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(compute_capability="9.0")])
    for wanted in ("auto", "cudnn"):
        config = small_config(model=dict(attention_kernel=wanted), train=dict(precision="bfloat16"))
        model = decoding_model(config, SimpleNamespace(vocab_sizes=(VOCAB, VOCAB)), "bfloat16")
        assert model.config.attention_kernel == "einsum"


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({}, ("cudnn in",)),
        ({"model.num_heads": 4}, ("einsum", "cudnn", "heads of", "4")),
        ({"data.pack_length": 31}, ("einsum", "cudnn", "rows of", "31")),
        ({"train.precision": "float32"}, ("einsum", "gpu", "train.precision")),
    ],
)
def test_explain_names_the_kernel(monkeypatch, keys, named):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(compute_capability="9.0")])
    config = small_config(model=dict(num_heads=2), train=dict(precision="bfloat16")).with_values(
        keys
    )
    assert_names(
        "\n".join(explain_attention(config, compute_dtype(config.train.precision))), *named
    )


def test_decoding_stays_with_einsum(calls, beams=4):
    """The kernel reads keys in another order than the cache holds them.

    Each step would transpose the cache.
    """
    config = small_config(
        model=dict(num_heads=2, attention_kernel="auto"), train=dict(precision="bfloat16")
    )
    _, _, state, _ = model_and_state(config)
    model = make_model(config, VOCAB, VOCAB, platform="gpu")
    assert model.config.attention_kernel == "cudnn"

    def decode(params, source, tokens):
        cache = model.apply({"params": params}, source, beams, 8, method="start_cache")
        encoder = len(calls)
        out = model.apply({"params": params}, tokens, jnp.int32(0), cache, method="decode_step")
        assert len(calls) == encoder
        return out

    jax.eval_shape(decode, state.params, np.ones((2, 12), np.int32), np.ones((2, beams), np.int32))
    assert calls == [(2, 12, 2, 8)]  # the encoder
