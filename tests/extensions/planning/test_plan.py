"""Plans in this process, with eight simulated devices.

Meshes, batch shapes, products and the report.
"""

import jax
import jax.numpy as jnp
import pytest
from helpers.configs import VOCAB, devices_mesh, small_config
from helpers.matrix_products import matrix_products
from helpers.refusals import assert_names, refused, refused_command

from t2t_flax.data.batching.rows import shape_of
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.extensions.finetuning import FineTuning
from t2t_flax.extensions.kernels import splash
from t2t_flax.extensions.planning import abstract_run as runs
from t2t_flax.extensions.planning import command, report
from t2t_flax.extensions.planning import plan as planning
from t2t_flax.extensions.planning.collectives import DeviceLayout
from t2t_flax.extensions.planning.plan import batch_shape, make_plan, update_flops
from t2t_flax.extensions.planning.topology import parse
from t2t_flax.models.attention import SegmentMask
from t2t_flax.training.setup import resident_bytes


def config_of(**groups):
    return small_config(data=dict(vocab_size=VOCAB), **groups)


@pytest.mark.parametrize(
    ("machine", "compiler", "extra"), [("v5e-16", "tpu", "plan"), ("h100-8", "gpu", "plan-gpu")]
)
def test_missing_compiler_is_reported_with_its_install_command(
    monkeypatch, machine, compiler, extra
):
    monkeypatch.setattr(command, f"has_{compiler}_compiler", lambda: False)
    with refused(machine, f"[{extra}]"):
        command.require_compilers([parse("cpu:8"), parse(machine)])


def test_child_environment_has_the_devices_of_the_largest_cpu():
    machines = [parse(name) for name in ("cpu:4", "v5e-256", "2xcpu:8")]
    assert command.compiler_environment(machines)["JAX_NUM_CPU_DEVICES"] == "16"
    assert command.compiler_environment(machines[1:2])["JAX_NUM_CPU_DEVICES"] == "1"


@pytest.mark.parametrize(
    ("mesh", "key"),
    [
        ({"tensor": 3}, "config.mesh"),
        ({"tensor": 8}, "config.model.num_heads"),
        ({"slices": 3}, "config.mesh.slices"),
    ],
)
def test_impossible_mesh_is_refused_with_its_key(mesh, key):
    with refused(key):
        runs.abstract_run(config_of(mesh=mesh), parse("cpu:8"))


@pytest.mark.parametrize(
    "flags", ["--topology=v7q-8", "--topology=,", "--topology=cpu:8 --rows=0", ""]
)
def test_wrong_flags_are_refused(flags):
    refused_command(
        ["plan", "--config=aiayn_base", *flags.split()],
        flags.split("=")[0].split()[-1] if flags else "--topology",
    )


def test_sharded_state_takes_less_memory_on_each_device():
    def state_bytes(**mesh):
        return resident_bytes(runs.abstract_run(config_of(mesh=mesh), parse("cpu:8")).state)

    replicated, fsdp = state_bytes(), state_bytes(fsdp=8, data=1)
    assert fsdp < replicated / 4
    assert fsdp < state_bytes(fsdp=8, data=1, fsdp_mode="zero1") < replicated


def test_slices_of_simulated_devices_divide_the_data_axis():
    run = runs.abstract_run(config_of(), parse("2xcpu:4"))
    assert DeviceLayout.of(run.mesh, run.topology).slices == (0,) * 4 + (1,) * 4


@pytest.mark.smoke
def test_plan_of_simulated_devices():
    plan = make_plan(config_of(), parse("cpu:8"), rows=2)
    train = plan["train"]
    assert plan["shape"] == {"length": 24, "rows": 16, "micro": 1} and plan["bound"] is None
    assert train["fits"] and train["memory"]["argument"] >= plan["state_bytes"]
    assert train["traffic"] is None and train["estimate"] is None and plan["rates"] is None
    assert {row["kind"] for row in train["collectives"]} == {"all-reduce"}
    assert report.describe(config_of(), parse("cpu:8"), plan)
    assert report.table([plan]).splitlines()[1].split()[:2] == ["cpu:8", "8"]


@pytest.mark.parametrize("remat", ["none", "full"])
def test_traced_products_have_the_flops_of_the_formula(remat):
    config = config_of(
        train=dict(remat=remat), model=dict(pad_vocab_to_multiple=1), loss=dict(logits_chunk_size=0)
    )
    run = runs.abstract_run(config, parse("cpu:1"))
    shape = batch_shape(config, 1)
    products = matrix_products(runs.trace_train_step(run, shape).jaxpr.jaxpr)
    assert sum(row["flops"] for row in products) == pytest.approx(
        update_flops(config, shape, run.state.params), rel=0.05
    )


@pytest.mark.parametrize(
    ("keys", "model"),
    [
        (dict(freeze="shared_embedding"), {}),
        (dict(freeze="encoder_*"), {}),
        (dict(freeze="*_embedding encoder_*"), dict(norm_placement="pre", tie_embeddings="none")),
        (dict(lora_rank=2), {}),
    ],
)
def test_products_of_frozen_parameters_are_not_counted(keys, model):
    sizes = dict(
        num_encoder_layers=2, num_decoder_layers=2, d_model=32, d_ff=96, pad_vocab_to_multiple=1
    )
    config = config_of(finetuning=keys, model=sizes | model, loss=dict(logits_chunk_size=0))
    run, shape = runs.abstract_run(config, parse("cpu:1")), batch_shape(config, 1, rows=16)
    products = matrix_products(runs.trace_train_step(run, shape).jaxpr.jaxpr)
    everything = config_of(model=sizes | model)
    counted = update_flops(config, shape, run.state.params)
    all_trained = update_flops(
        everything, shape, runs.abstract_run(everything, parse("cpu:1")).state.params
    )
    assert counted == pytest.approx(sum(row["flops"] for row in products), rel=0.1)
    assert counted < all_trained


@pytest.mark.parametrize("keys", [dict(freeze="shared_embedding encoder_*"), dict(lora_rank=2)])
def test_compiler_counts_as_many_flops_with_frozen_parameters(keys):
    """The loss in chunks, too: its gradient of a frozen table is traced, but not compiled."""
    config = small_config(
        finetuning=keys,
        model=dict(d_model=128, d_ff=512, dropout=0.0),
        data=dict(vocab_size=1024, pack_length=32),
    )
    run, shape = runs.abstract_run(config, parse("cpu:1")), batch_shape(config, 1, rows=8)
    xla = runs.trace_train_step(run, shape).lower().compile().cost_analysis()["flops"]
    assert update_flops(config, shape, run.state.params) == pytest.approx(xla, rel=0.08)
    all_trained = config.with_values(
        {f"finetuning.{name}": getattr(FineTuning, name) for name in keys}
    )
    assert update_flops(all_trained, shape, run.state.params) > 1.2 * xla


def test_products_in_a_kernel_on_each_device_count_with_all_blocks_and_devices():
    q, mask = jnp.zeros((4, 128, 2, 64)), SegmentMask(jnp.ones((4, 128)), jnp.ones((4, 128)))
    with mesh_lib.use(devices_mesh(2, 1, 2)):
        traced = jax.jit(lambda q: splash.attend(q, q, q, mask, scaled=True)).trace(q)
    (row,) = matrix_products(traced.jaxpr.jaxpr)
    assert (row["count"], row["flops"]) == (2, 2 * 2 * q.size * 128)


def test_plan_of_an_oversized_program_is_reported(monkeypatch):
    refusal = {"fits": False, "needed_bytes": 30 * 2.0**30, "available_bytes": 15.75 * 2**30}
    monkeypatch.setattr(
        "t2t_flax.extensions.planning.plan.compile_train_step", lambda run, shape: refusal
    )
    plan = make_plan(config_of(), parse("cpu:8"))
    text = report.describe(config_of(), parse("v5e-8"), plan)
    assert_names(text, "30.00 GiB", "15.75 GiB", "config.mesh.fsdp")
    assert "30.00" in report.table([plan, plan])


@pytest.mark.parametrize(
    ("machine", "compiled", "names", "seconds"),
    [
        (
            "h100-8",
            {
                "traffic": {
                    "kernels": 2629,
                    "custom_calls": 36,
                    "bytes": 136_300_000_000,
                    "seconds": 0.0407,
                }
            },
            ("136.3 GB", "40.7 ms", "2,629 kernels", "36 custom"),
            0.0407,
        ),
        (
            "v5e-8",
            {"estimate": {"cycles": 75_280_000, "custom_calls": 36, "seconds": 0.0501}},
            ("estimate", "75.3 million", "50.1 ms", "36"),
            0.0501,
        ),
        (
            "tpu7x-16",
            {"estimate": {"cycles": 75_280_000, "custom_calls": 0, "seconds": None}},
            ("75.3 million",),
            None,
        ),
    ],
)
def test_plan_says_what_the_compiled_program_takes(machine, compiled, names, seconds, monkeypatch):
    train = {
        "fits": True, "memory": {"temp": 1, "peak": 2}, "collectives": [], "custom_calls": {}, "traffic": None,
        "gradient_exchanges": {"times": 1, "in_loop": False, "bytes": 0}, "estimate": None,
    }  # fmt: skip
    monkeypatch.setattr(
        planning, "abstract_run", lambda config, machine: runs.abstract_run(config, parse("cpu:8"))
    )
    monkeypatch.setattr(planning, "compile_train_step", lambda run, shape: train | compiled)
    plan = make_plan(config_of(), parse(machine))
    assert plan["rates"]["seconds"] == (seconds or plan["bound"]["seconds"])
    assert plan["rates"]["tokens_per_second"] == pytest.approx(
        plan["tokens"] / plan["rates"]["seconds"]
    )
    assert_names(report.describe(config_of(), parse(machine), plan), *names)
    assert seconds is None or f"{1e3 * seconds:.2f}" in report.table([plan])


@pytest.mark.parametrize(
    "message",
    [
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.50G of 15.75G hbm. Exceeded by 4.75G.",
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (20.50G) exceeds "
        "available HBM (15.75G).",
    ],
)
def test_sizes_are_parsed_from_the_tpu_out_of_memory_error(message):
    assert runs._REFUSAL.search(message).groups() == ("20.50", "G", "15.75", "G")


@pytest.mark.parametrize(("shards", "micro"), [(1, 0), (4, 0), (1, 48), (4, 24), (1, 23)])
def test_shape_of_a_plan_has_the_rows_of_real_batches(shards, micro):
    config = small_config(data={"microbatch_tokens": micro, "batch_tokens": 230, "pack_length": 24})
    assert batch_shape(config, shards) == shape_of(24, 9, micro, shards)
