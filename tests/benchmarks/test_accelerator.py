"""The benchmark of accelerators: its bound, and what a small run of it reports."""

import json
from types import SimpleNamespace

import jax
import pytest
from helpers.refusals import assert_names, refused

from benchmarks import accelerator
from t2t_flax.config import load_config
from t2t_flax.data.batching.batches import Shape
from t2t_flax.distributed.mesh import make_mesh
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.train_state import init_state, make_model

TINY = [
    f"--config.{key}={value}"
    for key, value in {
        "model.num_encoder_layers": 1, "model.num_decoder_layers": 1, "model.d_model": 16, "model.d_ff": 16,
        "model.num_heads": 2, "data.batch_tokens": 600, "data.vocab_size": 500,
    }.items()
]  # fmt: skip


@pytest.mark.parametrize(("kind", "expected"), [("NVIDIA H100 80GB HBM3", 10.3), ("TPU v5 lite", 51.73), ("cpu", None)])
def test_bound_is_that_of_the_data_sheet(kind, expected, monkeypatch):
    config = load_config("aiayn_base", {})
    mesh, model = make_mesh(config.mesh, jax.devices()[:1]), make_model(config, 37_000, 37_000)
    state, _ = init_state(config, model, make_optimizer(config), mesh, abstract=True)
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind=kind)])
    setup = SimpleNamespace(config=config, mesh=mesh, abstract=state)
    found = accelerator.bound(setup, Shape(256, 98, 1))
    assert found == (expected and pytest.approx(expected, abs=0.02))


def test_unknown_rows_and_too_few_updates_are_errors():
    for flag, name in (("--rows=base_mosaic", "base_mosaic"), ("--updates=39", "--updates=39")):
        with refused(name):
            accelerator.main([flag])


@pytest.mark.slow
def test_a_small_run_reports_rates_and_why_a_row_failed(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    out = tmp_path / "record.json"
    accelerator.main(["--rows=base", "--updates=60", f"--out={out}", *TINY])
    row = json.loads(out.read_text())["rows"]["base"]
    rates = row["target_tokens_per_second"]
    assert len(rates["all"]) == 2 and rates["min"] > 0 and row["shape"] == "1 x 3 rows of 256"
    assert row["losses"][1] < row["losses"][0] and row["compile_seconds"] > 0.5
    assert 0 < row["mfu"]["mfu_useful_measured"] < row["mfu"]["mfu_hardware_measured"]
    accelerator.main(["--rows=base", f"--out={out}", *TINY, "--config.model.num_heads=3"])
    assert_names(json.loads(out.read_text())["rows"]["base"]["failed"], "config.model.d_model")
