"""With slices, losses, metrics and parameters have the same bits on every data-parallel and FSDP mesh."""

import importlib.metadata
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import VOCAB, devices_mesh, random_pairs, small_config, write_store
from helpers.runs import start, tiny_run
from jax.sharding import NamedSharding, PartitionSpec

from t2t_flax.config import default_config, override, resolve
from t2t_flax.data.batching.batches import Batches
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.errors import UserError
from t2t_flax.extensions.reproducible.tree_sums import TreeSums
from t2t_flax.training import loop
from t2t_flax.training.checkpoint_files import read_meta
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.precision import compiler_options
from t2t_flax.training.progress import read_metrics
from t2t_flax.training.row_sums import RowSums, row_sums
from t2t_flax.training.setup import ValidationLoss, put_batch
from t2t_flax.training.train_state import init_state, make_model
from t2t_flax.training.train_step import make_train_step

SLICES = 8
ONE = (1, 1)
"""Devices of the axes data and fsdp."""
MESHES = {"packed": [(8, 1), (2, 4)], "buckets": [(1, 4)], "zero1": [(1, 2)]}
MORE_MESHES = {"packed": [(2, 1), (1, 4)], "buckets": [(4, 1), (1, 8)]}
OPTIMIZED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
if importlib.metadata.version("jaxlib").startswith("0.10."):
    OPTIMIZED["xla_cpu_use_fusion_emitters"] = True
"""Compiles as for users, whose programs have more fusions, in which bits could differ, than those of tests."""

COMMON = dict(
    model=dict(d_model=32, d_ff=64, dropout=0.1),
    reproducible=dict(slices=SLICES),
)
CASES = {
    # Two or three microbatches of 8 slices of 2 rows.
    "packed": dict(
        COMMON,
        data=dict(batching="packed", batch_tokens=640, microbatch_tokens=48),
        optimizer=dict(max_grad_norm=0.5, ema_decay=0.9, weight_decay=0.1, lr_scale=1.0),
        loss=dict(logits_chunk_size=16),
    ),
    "buckets": dict(
        COMMON,
        data=dict(batching="buckets", batch_tokens=320),
        train=dict(precision="bfloat16"),
        optimizer=dict(max_grad_norm=0.5),
    ),
    "zero1": dict(
        COMMON,
        mesh=dict(fsdp_mode="zero1"),
        data=dict(batching="packed"),
        train=dict(remat="full", precision="bfloat16"),
    ),
}


def bits(tree) -> dict[str, bytes]:
    return {jax.tree_util.keystr(path): np.asarray(x).tobytes() for path, x in jax.tree.leaves_with_path(tree)}


def trained(config, store, mesh_sizes, updates, optimized=False):
    """{what: bits} of the initial state, the metrics of each update, the state after them and its validation losses."""
    mesh = devices_mesh(*mesh_sizes)
    by_row = row_sums(config, mesh)
    model, tx = make_model(config, VOCAB, VOCAB), make_optimizer(config, by_row.norm)
    state, shardings = init_state(config, model, tx, mesh)
    batches, programs, found = Batches(store, config.data, seed=0, shards=by_row.shards), {}, {"initial": bits(state)}
    step = make_train_step(config, model, tx, mesh, shardings)
    with mesh_lib.use(mesh):
        for k in range(updates):
            arrays = put_batch(batches.batch(k), mesh).arrays
            if (shape := arrays["target"].shape) not in programs:
                options = (compiler_options(config) or {}) | (OPTIMIZED if optimized else {})
                programs[shape] = by_row.compile(step.lower(state, arrays), options)
            state, metrics = programs[shape](state, arrays)
            found[f"metrics of update {k + 1}"] = bits(metrics)
    found |= {"params": bits(state.params), "ema": bits(state.ema), "moments": bits(state.opt_state)}
    losses = ValidationLoss(config, model, mesh, state.params, store)(state.params)
    return found | {"validation": {name: np.float64(loss).tobytes() for name, loss in losses.items()}}


def first_difference(a, b) -> str:
    differ = ((what, name) for what in a for name in a[what] if a[what][name] != b[what][name])
    return "; ".join(f"{what}: {name}" for what, name in itertools.islice(differ, 5))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("store") / "store", random_pairs(160))


def same_bits_on(meshes, case, store, updates):
    config = small_config(**CASES[case])
    optimized = case == "packed"  # which takes most of a minute to compile
    found = trained(config, store, ONE, updates, optimized)
    for mesh in meshes:
        assert not first_difference(found, trained(config, store, mesh, updates, optimized)), mesh


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_updates_have_the_same_bits_on_every_mesh(case, store):
    """With dropout, clipping, accumulation, padding, a moving average, and validation losses at the end."""
    same_bits_on(MESHES[case], case, store, updates=6)


@pytest.mark.drill
@pytest.mark.parametrize("case", MORE_MESHES)
def test_twenty_updates_have_the_same_bits_on_more_meshes(case, store):
    same_bits_on(MORE_MESHES[case], case, store, updates=20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("muon", (4, 1)),
        ("schedule_free_adamw", (1, 4)),
        pytest.param("adafactor", (4, 1), marks=pytest.mark.drill),
        ("nadamw", (2, 4)),
        pytest.param("lion", (2, 4), marks=pytest.mark.drill),
    ],
)
def test_other_optimizers_have_the_same_bits(name, mesh, store):
    """Those that sum over matrices where only the batch is divided."""
    more = dict(schedule="constant") if name == "schedule_free_adamw" else {}
    config = small_config(**COMMON | dict(optimizer=dict(name=name, weight_decay=0.1) | more))
    assert not first_difference(trained(config, store, ONE, 3), trained(config, store, mesh, 3))


@pytest.mark.slow
def test_without_slices_bits_differ(store):
    """So the tests above can fail: the loss too differs."""
    config = small_config(**CASES["packed"]).with_values({"reproducible.slices": 0})
    found, on_mesh = trained(config, store, ONE, 6), trained(config, store, (2, 4), 6)
    assert "metrics of update" in first_difference(found, on_mesh)
    assert found["params"] != on_mesh["params"]


def test_without_slices_the_sums_are_those_of_the_core():
    config, mesh = small_config(), devices_mesh(2, 4)
    assert type(row_sums(config, mesh)) is RowSums and row_sums(config, mesh).shards == 8
    assert compiler_options(config) is None


@pytest.mark.smoke
@pytest.mark.parametrize("mesh", [ONE, (4, 1), (1, 4), (2, 4)])
def test_slices_are_summed_as_a_binary_tree(mesh):
    """In float32, exactly: half of the slices, then the other half, each so."""
    rng = np.random.default_rng(0)
    shapes = {"divided first": (8, 3), "divided second": (3, 16), "whole": (5,), "scalar": ()}
    rows = {
        name: (rng.normal(size=(1, SLICES, *shape)) * 10.0 ** rng.integers(-3, 4, (1, SLICES, *shape))).astype(
            np.float32
        )
        for name, shape in shapes.items()
    }

    def tree_sum(x):
        return x[0] if len(x) == 1 else tree_sum(x[: len(x) // 2]) + tree_sum(x[len(x) // 2 :])

    devices = devices_mesh(*mesh)
    specs = {"divided first": PartitionSpec("fsdp"), "divided second": PartitionSpec(None, "fsdp")}
    moments = {name: NamedSharding(devices, specs.get(name, PartitionSpec())) for name in shapes}
    params = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    batch = rows | {"target": np.ones((1, SLICES, 4), np.int32)}

    def of_rows(params, batch):
        return {name: batch[name][0] for name in shapes}, {"rows": batch["target"][0, 0].astype(jnp.float32)}

    def total(params, batch):
        micro = lambda params, parts: of_rows(params, parts[0])  # noqa: E731
        return TreeSums(SLICES, devices).of_update(
            micro, params, (batch,), {"rows": jnp.zeros(())}, jnp.float32, moments
        )

    with mesh_lib.use(devices):
        grads, sums = jax.jit(total)(params, batch)
    assert float(sums["rows"]) == SLICES
    for name, shape in shapes.items():
        assert grads[name].shape == shape
        np.testing.assert_array_equal(grads[name], tree_sum(rows[name][0]), err_msg=name)
        assert grads[name].sharding.is_equivalent_to(moments[name], len(shape))


def test_what_has_other_bits_on_another_mesh_is_refused():
    def check(**keys):
        given = {"reproducible.slices": "8"} | {key.replace("_", ".", 1): str(value) for key, value in keys.items()}
        return resolve(override(default_config(), given))

    for message, keys in {
        "slices = 6 is not a power of two": dict(reproducible_slices=6),
        "mesh.tensor = 2 divides the sums within matrix products": dict(mesh_tensor=2),
        "attention_kernel = auto, but cuDNN's attention fails": dict(model_attention_kernel="auto"),
        "attention_kernel = cudnn, but cuDNN's attention fails": dict(model_attention_kernel="cudnn"),
        "optimizer.name = adafactor may sum over whole matrices": dict(optimizer_name="adafactor", mesh_fsdp=2),
    }.items():
        with pytest.raises(UserError, match=message):
            check(**keys)
    config = check(optimizer_name="adafactor")
    with pytest.raises(UserError, match="slices = 8 is not a multiple of the 3 devices"):
        row_sums(config, devices_mesh(3, 1))
    trials = pytest.importorskip("t2t_flax.extensions.sweeps.trials")
    assert "in an order of its own" in trials.vectorization_conflict(config, config)


@pytest.mark.slow
def test_a_run_goes_on_with_the_same_bits_on_other_devices(tmp_path, cache):
    """Four updates on two devices and four on eight, with FSDP, are eight on one: metrics, validation losses, checkpoints."""

    def train(name, devices, steps, **mesh):
        config = tiny_run(
            tmp_path,
            steps=steps,
            reproducible=dict(slices=SLICES),
            optimizer=dict(max_grad_norm=0.5),
            eval=dict(every_steps=2),
            mesh=dict(data=-1) | mesh,
        )
        loop.train(start(config, tmp_path / name, cache, devices), score=None)

    train("one", 1, 8)
    train("many", 2, 4)
    train("many", 8, 8, fsdp=8)
    one, many = (
        [
            {
                name: x
                for name, x in line.items()
                if not name.startswith(("seconds", "target_tokens_per_second", "mfu_"))
            }
            for line in read_metrics(tmp_path / name)
            if "config_changed" not in line
        ]
        for name in ("one", "many")
    )
    assert len(one) > 8 and any("valid_loss" in line for line in one)
    assert one == many
    of_arrays = [read_meta(tmp_path / name / "checkpoints" / "8")["checksums"] for name in ("one", "many")]
    assert of_arrays[0] == of_arrays[1]
