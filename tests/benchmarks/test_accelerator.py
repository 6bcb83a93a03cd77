"""The benchmark of accelerators: its bound, and what a small run of it reports."""

import json
from types import SimpleNamespace

import jax
import pytest
from helpers.refusals import assert_names, refused

from benchmarks import accelerator, accelerator_rows, device_trace
from t2t_flax.config import load_config
from t2t_flax.data.batching.rows import Shape
from t2t_flax.distributed.mesh import make_mesh
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.train_state import abstract_state, make_model

TINY = [
    f"--config.{key}={value}"
    for key, value in {
        "model.num_encoder_layers": 1, "model.num_decoder_layers": 1, "model.d_model": 16, "model.d_ff": 16,
        "model.num_heads": 2, "data.batch_tokens": 800, "data.vocab_size": 500,
    }.items()
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "expected"), [("NVIDIA H100 80GB HBM3", 10.3), ("TPU v5 lite", 51.73), ("cpu", None)]
)
def test_bound_is_that_of_the_data_sheet(kind, expected, monkeypatch):
    config = load_config("aiayn_base", {})
    mesh, model = make_mesh(config.mesh, jax.devices()[:1]), make_model(config, 37_000, 37_000)
    state, _ = abstract_state(
        config,
        model,
        make_optimizer(config, parametrization_of(config)),
        parametrization_of(config),
        mesh,
    )
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind=kind)])
    setup = SimpleNamespace(config=config, mesh=mesh, abstract=state)
    found = accelerator_rows.bound(setup, Shape(256, 98, 1))
    assert found == (expected and pytest.approx(expected, abs=0.02))


def test_unknown_rows_and_too_few_updates_are_errors():
    for flag, name in (("--rows=base_mosaic", "base_mosaic"), ("--updates=39", "--updates=39")):
        with refused(name):
            accelerator.main([flag])


@pytest.mark.parametrize("name", accelerator.ROWS)
def test_every_row_can_be_measured(name):
    presets = accelerator.STEPS | {
        row: ("aiayn_base", keys) for row, keys in accelerator.RESUMES.items()
    }
    if name in presets:
        load_config(presets[name][0], {key: str(value) for key, value in presets[name][1].items()})
    else:
        assert name in accelerator.published.RECIPES or name == accelerator.SELFTEST


@pytest.fixture
def measured(monkeypatch):
    """The names of rows that were run; each is a failure the first time."""
    names = []

    def run_row(name, args, overrides, seconds):
        names.append(name)
        return {"ms": 1} if names.count(name) > 1 else {"failed": "exit code 1"}

    monkeypatch.setattr(accelerator, "machine", lambda: {"device": "none"})
    monkeypatch.setattr(accelerator, "run_row", run_row)
    return names


def test_the_same_command_goes_on_with_what_a_record_lacks(measured, tmp_path):
    out = tmp_path / "record.json"
    command = ["--rows=base,big", f"--out={out}"]
    for _ in range(3):
        accelerator.main(command)
    assert measured == ["base", "big"] * 2
    record = json.loads(out.read_text())
    assert [row["ms"] for row in record["rows"].values()] == [1, 1] and len(record["commands"]) == 3
    with refused("updates", str(out)):
        accelerator.main([*command, "--updates=60"])


def test_no_row_starts_without_time_and_no_recipe_without_its_text(measured, tmp_path):
    accelerator.main(["--seconds=50"])
    accelerator.main(["--rows=multi30k,envi_t2t,envi_tears"])
    accelerator.main(["--rows=multi30k", f"--prepared={tmp_path}", "--seconds=100"])
    assert not measured


def test_a_recipe_that_was_stopped_goes_on():
    rows = {"complete": False}, {"complete": True}, {"ms": 1}, {"failed": "late"}, None
    assert [accelerator.is_done(row) for row in rows] == [False, True, True, False, False]


def test_kernels_are_summed_by_part_of_the_step():
    program = """HloModule m
ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8] parameter(0)
  %b = f32[8] negate(%a), metadata={op_name="encoder_0/feed_forward/neg"}
  ROOT %c = f32[8] custom-call(%b), metadata={op_name="logits"}, custom_call_target="__cublas$gemm"
}
"""
    found = device_trace.summary(
        {"b": [1e-3, 2e-3], "c": [1e-3] * 4, "MemcpyD2D": [1e-3, 1e-3]}, 2, program
    )
    assert (found["busy_ms"], found["unmatched_ms"], found["kernels"]) == (4.5, 1.0, 4.0)
    assert found["parts"]["feed-forward"] == {"ms": 1.5, "kernels": 1.0}
    assert found["parts"]["logits, loss"] == {"ms": 2.0, "kernels": 2.0}
    assert found["parts"]["optimizer, other"] == {"ms": 1.0, "kernels": 1.0}


@pytest.mark.parametrize(
    ("name", "stats", "expected"),
    [
        ("sm90_gemm", {"hlo_op": "while.1::fusion.7", "program_id": 3}, "fusion.7"),
        ("%fusion.3 = f32[8] fusion(...)", {}, "fusion.3"),
        ("MemcpyD2D", {}, "MemcpyD2D"),
    ],
)
def test_events_of_a_device_name_their_instruction(name, stats, expected):
    assert device_trace.on_device(SimpleNamespace(name=name, stats=stats.items())) == (0, expected)


@pytest.mark.slow
def test_a_small_run_reports_rates_parts_and_why_a_row_failed(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    monkeypatch.setattr(accelerator, "machine", lambda: {"device": "cpu"})
    out = tmp_path / "record.json"
    accelerator.main(["--rows=base", "--updates=60", f"--out={out}", *TINY])
    row = json.loads(out.read_text())["rows"]["base"]
    rates = row["target_tokens_per_second"]
    assert len(rates["all"]) == 2 and rates["min"] > 0 and row["shape"] == "1 x 3 rows of 256"
    assert (
        row["losses"][1] < row["losses"][0]
        and row["compile_seconds"] > 0.5
        and row["attention"] == "einsum"
    )
    assert 0 < row["mfu"]["mfu_useful_measured"] < row["mfu"]["mfu_hardware_measured"]
    assert all(part["ms"] > 0 for part in row["trace"]["parts"].values())
    other = tmp_path / "other.json"
    accelerator.main(["--rows=base", f"--out={other}", *TINY, "--config.model.num_heads=3"])
    assert_names(json.loads(other.read_text())["rows"]["base"]["failed"], "config.model.d_model")


@pytest.mark.slow
def test_a_resumed_run_is_compared_by_its_bits(capsys):
    keys = {flag.removeprefix("--config.").split("=")[0]: flag.split("=")[1] for flag in TINY}
    row = accelerator_rows.resume_row("aiayn_base", keys | {"train.precision": "float32"}, 3)
    assert (
        row["equal"] and row["arrays"] > 10 and row["losses"]["whole"] == row["losses"]["resumed"]
    )
    assert_names(capsys.readouterr().err, "update 3")
