"""Statistics of layers during training.

Against NumPy and by hand, whatever the packing and the devices, at no change of the run.
"""

import dataclasses
import functools
import types

import jax
import numpy as np
import pytest
from etils import epath
from flax.traverse_util import flatten_dict, unflatten_dict
from helpers.configs import devices_mesh, model_and_state, random_pairs, rows_alone, small_config
from helpers.runs import start, tiny_run

from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.extensions.inspection import layers
from t2t_flax.extensions.inspection.layers import activations
from t2t_flax.tasks import task_of
from t2t_flax.training import loop
from t2t_flax.training.hooks import call_hooks
from t2t_flax.training.prefetcher import put_batch
from t2t_flax.training.progress import read_metrics
from t2t_flax.training.setup import compile_programs, set_up_training, train_program
from t2t_flax.training.train_state import init_state
from t2t_flax.training.workdir import adopt_config

PREFIXES = (
    "param_rms/", "grad_rms/", "update_rms/", "update_ratio/", "activation_rms/", "dead_units/", "attention_entropy/",
)  # fmt: skip


def statistics(line: dict) -> dict[str, float]:
    return {name: x for name, x in line.items() if name.startswith(PREFIXES)}


def measured(setup, state=None, number=0) -> dict[str, float]:
    """What the hook adds to the numbers of an update."""
    state = (
        state
        or init_state(setup.config, setup.model, setup.tx, setup.parametrization, setup.mesh)[0]
    )
    setup = dataclasses.replace(
        setup, config=setup.config.with_values({"inspection.layers_every": 1})
    )
    made = layers.hooks(setup)
    batch, values = put_batch(setup.batches.batch(number), setup.mesh), {}
    call_hooks(made, "before", 1, state, batch)
    call_hooks(made, "update", 1, batch, values)
    return values


def elements_of(tree) -> dict[str, np.ndarray]:
    """{module: all elements of its own arrays}, float64."""
    arrays: dict[str, list[np.ndarray]] = {}
    for path, x in flatten_dict(jax.device_get(tree), sep="/").items():
        arrays.setdefault(path.rpartition("/")[0] or path, []).append(
            np.asarray(x, np.float64).ravel()
        )
    return {name: np.concatenate(xs) for name, xs in arrays.items()}


def rms_of(tree) -> dict[str, float]:
    return {name: float(np.sqrt(np.mean(x**2))) for name, x in elements_of(tree).items()}


def named(prefix: str, found: dict[str, float]) -> dict[str, float]:
    return {name.removeprefix(prefix): x for name, x in found.items() if name.startswith(prefix)}


@pytest.mark.slow
def test_norms_equal_numpys(tmp_path, cache):
    """Parameters and updates as they are in the arrays before and after.

    Gradients as in Adam's first moment, 1 - b1 of the first one, also where they are clipped
    afterwards. With dropout and accumulation.
    """
    config = tiny_run(tmp_path)
    setup = start(config, tmp_path, cache)
    state = init_state(setup.config, setup.model, setup.tx, setup.parametrization, setup.mesh)[0]
    before, found = jax.device_get(state.params), measured(setup, state)
    batch = put_batch(setup.batches.batch(0), setup.mesh)
    assert batch.arrays["target"].shape[0] > 1
    program = compile_programs(train_program(setup), setup.batches.shapes, setup.mesh)[
        batch.arrays["target"].shape
    ]
    with mesh_lib.use(setup.mesh):
        after, metrics = program(state, batch.arrays)
    after = jax.device_get(after)
    changes = jax.tree.map(lambda new, old: np.float64(new) - np.float64(old), after.params, before)
    has_moments = lambda x: hasattr(x, "mu")  # noqa: E731
    adam = next(filter(has_moments, jax.tree.leaves(after.opt_state, is_leaf=has_moments)))
    gradients = jax.tree.map(lambda m: m / (1 - config.optimizer.b1), adam.mu)
    for prefix, tree in (
        ("param_rms/", before),
        ("update_rms/", changes),
        ("grad_rms/", gradients),
    ):
        expected = rms_of(tree)
        assert expected and named(prefix, found) == pytest.approx(expected, rel=2e-4, abs=1e-12), (
            prefix
        )
    sizes = {name: len(x) for name, x in elements_of(before).items()}
    total = sum(sizes[name] * x**2 for name, x in named("grad_rms/", found).items()) ** 0.5
    assert total == pytest.approx(float(metrics["grad_norm"]), rel=1e-4)
    parameters = named("param_rms/", found)
    for name, ratio in named("update_ratio/", found).items():
        assert ratio == pytest.approx(found[f"update_rms/{name}"] / parameters[name], rel=1e-3)
    clipped = measured(
        start(tiny_run(tmp_path, optimizer=dict(max_grad_norm=1e-4)), tmp_path, cache)
    )
    assert named("grad_rms/", clipped) == pytest.approx(named("grad_rms/", found), rel=1e-4)


def test_updates_in_a_row_keep_their_own_numbers(monkeypatch, tmp_path):
    """An update is measured before the numbers of the one before it are known."""
    batch = types.SimpleNamespace(arrays={"target": np.zeros((1, 2, 3))})
    compiled = {(1, 2, 3): lambda state, arrays: np.array([state])}, ["activation_rms/encoder_0"]
    monkeypatch.setattr(layers, "compile_measure", lambda setup: compiled)
    config = tiny_run(tmp_path, inspection=dict(layers_every=1))
    made = layers.hooks(types.SimpleNamespace(config=config))
    found = []
    for step in (1, 2, 3):
        call_hooks(made, "before", step, step / 4, batch)
        if step > 1:
            call_hooks(made, "update", step - 1, batch, values := {})
            found.append(values)
    assert found == [{"activation_rms/encoder_0": 0.25}, {"activation_rms/encoder_0": 0.5}]


@pytest.mark.slow
def test_a_run_is_the_same_with_it(tmp_path, cache):
    """Parameters and losses bit for bit; every second update has the statistics of each layer."""
    ends, losses = [], []
    for name, every in (("without", 0), ("with", 2)):
        config = tiny_run(tmp_path, steps=5, inspection=dict(layers_every=every))
        workdir = tmp_path / name
        ends.append(jax.device_get(loop.train(start(config, workdir, cache), score=None).state))
        losses.append([line["loss"] for line in read_metrics(workdir)])
    for x, y in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_array_equal(x, y)
    assert losses[0] == losses[1]
    lines = read_metrics(tmp_path / "with")
    assert [line["step"] for line in lines if statistics(line)] == [2, 4]
    assert not any(statistics(line) for line in read_metrics(tmp_path / "without"))
    found = statistics(lines[1])
    assert all(np.isfinite(x) for x in found.values())
    assert {name for name in found if name.startswith(("dead_units/", "attention_entropy/"))} == {
        "dead_units/encoder_0/feed_forward",
        "dead_units/decoder_0/feed_forward",
        *(
            f"attention_entropy/{module}/head_{head}"
            for module in (
                "encoder_0/self_attention",
                "decoder_0/self_attention",
                "decoder_0/cross_attention",
            )
            for head in range(4)
        ),
    }
    assert {"activation_rms/encoder_0", "activation_rms/decoder_0/cross_attention"} <= found.keys()
    assert {"grad_rms/encoder_0/residual_ffn/norm", "update_ratio/shared_embedding"} <= found.keys()


@functools.partial(jax.jit, static_argnums=0)
def _found_in(model, params, rows):
    return activations(model, params, rows, None)


def found_in(model, params, rows) -> dict[str, float]:
    return {name: float(x) for name, x in _found_in(model, params, rows).items()}


def model_of(**groups):
    config = small_config(**({"model": dict(num_encoder_layers=2, num_decoder_layers=2)} | groups))
    model, _, state, _ = model_and_state(config)
    return model, jax.device_get(state.params)


def with_leaf(params, path: str, change):
    """The parameters, one of which is `change(its values)`."""
    flat = flatten_dict(params, sep="/")
    flat[path] = change(np.array(flat[path]))
    return unflatten_dict(flat, sep="/")


def test_entropy_of_uniform_attention_by_hand():
    """Queries that are 0 attend to all visible keys alike.

    Log n in the encoder, over the sentence in cross-attention, and log 1 ... log n in the decoder.
    """
    model, params = model_of()
    pairs = random_pairs(3, seed=5)
    for path in flatten_dict(params, sep="/"):
        if path.endswith("query/kernel"):
            params = with_leaf(params, path, np.zeros_like)
    found = found_in(model, params, rows_alone(pairs))
    sources, targets = ([len(pair[side]) for pair in pairs] for side in (0, 1))
    expected = {
        "encoder_1/self_attention": np.concatenate([[np.log(n)] * n for n in sources]).mean(),
        "decoder_1/self_attention": np.concatenate(
            [np.log(np.arange(1, n + 1)) for n in targets]
        ).mean(),
        "decoder_0/cross_attention": np.concatenate(
            [[np.log(s)] * t for s, t in zip(sources, targets, strict=True)]
        ).mean(),
    }
    for name, value in expected.items():
        heads = [found[f"attention_entropy/{name}/head_{head}"] for head in range(4)]
        np.testing.assert_allclose(heads, value, rtol=1e-5)


def test_dead_units_are_those_whose_bias_keeps_them_at_zero():
    model, params = model_of()
    rows = rows_alone(random_pairs(8, seed=1))
    plain = found_in(model, params, rows)

    def some(bias):
        bias[:12] = -1e9
        return bias

    params = with_leaf(
        params, "encoder_1/feed_forward/Einsum_0/bias", lambda bias: np.full_like(bias, -1e9)
    )
    params = with_leaf(params, "decoder_0/feed_forward/Einsum_0/bias", some)
    found = found_in(model, params, rows)
    assert found["dead_units/encoder_1/feed_forward"] == 1
    assert 12 / 32 <= found["dead_units/decoder_0/feed_forward"] < 1
    assert (
        plain["dead_units/encoder_0/feed_forward"]
        == found["dead_units/encoder_0/feed_forward"]
        < 0.2
    )
    assert found["activation_rms/encoder_1/feed_forward"] == 0


def packed(pairs) -> dict[str, np.ndarray]:
    """All pairs in one row, and some padding."""
    arrays = {}
    for n, side in enumerate(("source", "target")):
        parts = [pair[n] for pair in pairs]
        joined = {
            side: np.concatenate(parts),
            f"{side}_segments": np.concatenate(
                [[i] * len(part) for i, part in enumerate(parts, 1)]
            ),
            f"{side}_positions": np.concatenate([np.arange(len(part)) for part in parts]),
        }
        arrays |= {
            name: np.pad(x, (0, 80 - len(x)))[None].astype(np.int32) for name, x in joined.items()
        }
    return arrays


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_packing_and_padding_do_not_count(placement):
    model, params = model_of(model=dict(norm_placement=placement, num_encoder_layers=2))
    pairs = random_pairs(4, seed=2, longest=16)
    alone = found_in(model, params, rows_alone(pairs))
    for rows in (rows_alone(pairs, 40), packed(pairs)):
        assert found_in(model, params, rows) == pytest.approx(alone, rel=1e-5, abs=1e-6)


def test_activations_equal_the_arrays_of_the_model():
    """The RMS of a layer's output, over real tokens.

    A sub-layer's before it is added to its input.
    """
    model, params = model_of()
    rows = rows_alone(random_pairs(3, seed=7))
    found = found_in(model, params, rows)
    _, state = model.apply(
        {"params": params},
        rows,
        method="hidden",
        capture_intermediates=True,
        mutable=["intermediates"],
    )
    seen = jax.device_get(state["intermediates"])
    real = rows["source_segments"] > 0
    for name, of_module in (
        ("encoder_1", seen["encoder_1"]),
        ("encoder_0/feed_forward", seen["encoder_0"]["feed_forward"]),
    ):
        expected = np.sqrt((np.asarray(of_module["__call__"][0])[real] ** 2).mean())
        assert found[f"activation_rms/{name}"] == pytest.approx(expected, rel=1e-5)


def set_up(tmp_path, cache, devices=(1, 1, 1), **groups):
    """A run on simulated devices."""
    sizes = dict(zip(("data", "fsdp", "tensor"), devices, strict=True))
    config = tiny_run(tmp_path, **groups)
    config = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, **sizes))
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, cache=str(cache)))
    workdir = epath.Path(tmp_path / "-".join(map(str, devices)))
    adopt_config(workdir, config)
    corpus = prepare_corpus(task_of(config), workdir)
    return set_up_training(
        config, workdir, corpus, devices=list(devices_mesh(*devices).devices.flat)
    )


@pytest.mark.slow
def test_devices_do_not_change_it(tmp_path, cache):
    """On a mesh of eight, with sharded parameters or optimizer state: as on one device."""
    groups = dict(data=dict(batch_tokens=512, microbatch_tokens=0), optimizer=dict(eps=1e-4))
    one = measured(set_up(tmp_path / "one", cache, **groups))
    for mode in ("zero1", "full"):
        eight = measured(
            set_up(tmp_path / mode, cache, (2, 2, 2), mesh=dict(fsdp_mode=mode), **groups)
        )
        assert one.keys() == eight.keys() and eight == pytest.approx(one, rel=2e-3, abs=1e-6), mode


@pytest.mark.slow
def test_accumulation_and_recomputation_do_not_change_the_norms(tmp_path, cache):
    groups = dict(model=dict(dropout=0.0), optimizer=dict(eps=1e-4))
    whole = measured(set_up(tmp_path, cache, data=dict(microbatch_tokens=0), **groups))
    parts = measured(set_up(tmp_path, cache, train=dict(remat="full"), **groups))
    norms = [
        {name: x for name, x in found.items() if name.startswith(("param", "grad", "update"))}
        for found in (whole, parts)
    ]
    assert norms[1] == pytest.approx(norms[0], rel=2e-3, abs=1e-7) and whole.keys() == parts.keys()


@pytest.mark.slow
def test_frozen_parameters_have_no_statistics(tmp_path, cache):
    found = measured(set_up(tmp_path, cache, finetuning=dict(freeze="encoder_*")))
    assert not any(name.startswith("grad_rms/encoder_0") for name in found)
    assert {"grad_rms/decoder_0/feed_forward/Einsum_0", "activation_rms/encoder_0"} <= found.keys()
