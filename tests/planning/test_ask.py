"""The question to the compiler: missing compiler, impossible meshes, and what the CPU's compiler says."""

import pytest
from helpers.configs import VOCAB, random_pairs, small_config, write_store

from t2t_flax import config as config_lib
from t2t_flax.data.batching.batches import Batches, shape_of
from t2t_flax.errors import UserError
from t2t_flax.planning import ask as ask_lib
from t2t_flax.planning import compiled, report, shapes, worker
from t2t_flax.planning.plan import complete, largest_batch, make_plan
from t2t_flax.planning.topology import parse


def test_a_missing_compiler_is_named_with_the_command_that_brings_it(monkeypatch):
    monkeypatch.setattr(ask_lib, "has_libtpu", lambda: False)
    with pytest.raises(UserError, match=r"pip install 'libtpu==.*' .*no TPU needed"):
        make_plan(small_config(), parse("v5e-16"))


def test_the_compiler_asked_for_is_the_one_of_the_installed_jax():
    assert ask_lib.requirement().startswith("libtpu==")


def formula(topology: str, **groups) -> dict:
    """The worker's answer where nothing is compiled, in this process, which has eight simulated devices."""
    config = small_config(**groups)
    request = dict(config=config_lib.to_json(config), topology=topology, vocab=[VOCAB, VOCAB], parts=[])
    return worker.answer(request)


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ({"tensor": 3}, "config.mesh data x fsdp x tensor"),
        ({"tensor": 8}, "config.model.num_heads = 4 is not a multiple of 8"),
        ({"slices": 3}, "config.mesh.slices = 3"),
    ],
)
def test_an_impossible_mesh_names_its_key(mesh, message):
    with pytest.raises(UserError) as error:
        formula("gpu:h100x8", mesh=mesh)
    assert message in str(error.value)


def test_fully_sharded_state_takes_less_and_sends_other_things():
    whole, divided = formula("gpu:h100x8"), formula("gpu:h100x8", mesh={"fsdp": 8, "data": 1})
    assert divided["state_bytes"] < whole["state_bytes"] / 4
    kinds = lambda told: {row["kind"] for row in told["formula"]["collectives"]}  # noqa: E731
    assert kinds(whole) == {"all-reduce"}
    assert kinds(divided) == {"all-gather", "reduce-scatter", "all-reduce"}
    zero_1 = formula("gpu:h100x8", mesh={"fsdp": 8, "data": 1, "fsdp_mode": "zero1"})
    assert divided["state_bytes"] < zero_1["state_bytes"] < whole["state_bytes"]


def test_slices_of_simulated_devices_make_the_data_axis_run_over_the_network():
    (row,) = formula("2xcpu:4")["formula"]["collectives"]
    assert (row["devices"], row["slices"]) == (4, 2)


def test_gpus_are_by_formula_and_never_said_to_be_compiled():
    plan = make_plan(small_config(), parse("gpu:h100x8"))
    assert plan["by"] == "formula" and "refused" not in plan and "decode" not in plan
    said = report.describe(small_config(), parse("gpu:h100x8"), plan)
    assert "nothing was compiled" in said and "the compiler's" not in said and "predicted" in said
    assert "no compiler" in largest_batch(small_config(), parse("gpu:h100x8"))["why"]


def test_a_program_that_does_not_fit_is_an_answer():
    told = formula("gpu:h100x8")
    refused = {"fits": False, "needed_bytes": 30 * 2.0**30, "available_bytes": 15.75 * 2**30, "said": "no"}
    topology = parse("v5e-8")
    plan = complete(small_config(), topology, told | {"train": refused})
    said = report.describe(small_config(), topology, plan)
    assert "does not fit: 30.00 GiB are needed, 15.75 GiB are there" in said and "config.mesh.fsdp" in said
    assert "does not fit" in report.table([plan, plan])


@pytest.mark.parametrize(
    "said",
    [
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.50G of 15.75G hbm. Exceeded by 4.75G.",
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (20.50G) exceeds "
        "available HBM (15.75G).",
    ],
)
def test_the_sizes_are_read_from_the_compilers_refusal(said):
    found = compiled._USED.search(said)
    assert found.groups() == ("20.50", "G", "15.75", "G")


def test_shapes_of_a_store_are_those_that_training_uses(tmp_path):
    config = small_config()
    store = write_store(tmp_path / "store", random_pairs(300))
    shape = shapes.of_store(config, store, 2)
    assert shape in Batches(store, config.data, seed=config.seed.data, shards=2).shapes


@pytest.mark.parametrize(("shards", "micro"), [(1, 0), (4, 0), (1, 48), (4, 24), (1, 23)])
def test_the_estimate_has_the_rows_that_batches_would_have(tmp_path, shards, micro):
    """Of packed rows that are 97 % full."""
    config = small_config(data={"microbatch_tokens": micro, "batch_tokens": 230, "pack_length": 24})
    assert shapes.estimated(config, shards) == shape_of(24, 10, micro, shards)


def test_the_formulas_of_gpus_know_the_default_rules_alone():
    config = small_config(mesh=dict(rules="vocab=tensor heads=tensor mlp=tensor"))
    with pytest.raises(UserError, match="gpu:h100x8: the formulas know the default config.mesh.rules alone"):
        make_plan(config, parse("gpu:h100x8"))
