"""The accelerator benchmark runs on a CPU too, and reports the prediction of `plan` next to the measurement."""

import json

import pytest

from benchmarks import accelerator
from t2t_flax.extensions.planning.compiler_process import has_gpu_compiler

SMALL = {
    "model.d_model": "32", "model.d_ff": "32", "model.num_heads": "2", "model.num_encoder_layers": "1",
    "model.num_decoder_layers": "1", "data.vocab_size": "500", "data.batch_tokens": "1024",
}  # fmt: skip


@pytest.mark.slow
def test_small_model_is_measured_on_this_machine(tmp_path):
    keys = [f"--config.{key}={value}" for key, value in (SMALL | {"train.precision": "float32"}).items()]
    accelerator.main(["--preset=aiayn_base", "--steps=60", f"--out={tmp_path / 'record.json'}", *keys])
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["command"].startswith("python -m benchmarks.accelerator --preset=aiayn_base --steps=60 ")
    (result,) = record["results"]
    assert result["precision"] == "float32" and result["plan"] is None and result["program_bytes"] > 1e5
    rate = result["target_tokens_per_second"]
    assert 0 < rate["lowest"] <= rate["median"] <= rate["highest"] and rate["blocks"] == 2
    assert len(result["losses"]) == 3 and 0 < result["mfu"]["mfu_useful_measured"] < 1


@pytest.mark.slow
@pytest.mark.skipif(not has_gpu_compiler(), reason="JAX's CUDA plugin is not installed (extra plan-gpu)")
def test_prediction_for_a_gpu_has_the_measured_rows():
    result = {"preset": "aiayn_base", "changed": SMALL, "kind": "NVIDIA H200", "devices": 1, "rows_on_a_device": 4}
    prediction = accelerator.predict(result)
    assert prediction["topology"] == "h200-1" and prediction["peak_bytes"] > 1e5
    assert prediction["milliseconds_an_update_at_least"] > 0


def test_unknown_device_has_no_prediction():
    assert accelerator.predict({"kind": "cpu", "devices": 1}) is None
