"""The measurement for accelerators runs on a CPU too, and knows what `plan` says of the machines with a data sheet."""

import json

from benchmarks import accelerator

SMALL = {
    "model.d_model": "32", "model.d_ff": "32", "model.num_heads": "2", "model.num_encoder_layers": "1",
    "model.num_decoder_layers": "1", "data.vocab_size": "500", "data.batch_tokens": "1024", "train.compile_cache": "",
}  # fmt: skip


def test_a_small_model_on_this_machine(tmp_path):
    keys = [f"--config.{key}={value}" for key, value in (SMALL | {"train.precision": "float32"}).items()]
    accelerator.main(["--preset=aiayn_base", "--steps=60", f"--out={tmp_path / 'record.json'}", *keys])
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["command"].startswith("python -m benchmarks.accelerator --preset=aiayn_base --steps=60 ")
    (result,) = record["results"]
    assert result["precision"] == "float32" and result["plan"] is None and result["program_bytes"] > 1e5
    rate = result["target_tokens_per_second"]
    assert 0 < rate["lowest"] <= rate["median"] <= rate["highest"] and rate["blocks"] == 2
    assert len(result["losses"]) == 3 and 0 < result["mfu"]["mfu_useful_measured"] < 1


def test_a_gpu_has_a_prediction_beside_it():
    result = {"preset": "aiayn_base", "changed": SMALL, "kind": "NVIDIA H200", "devices": 1, "rows_on_a_device": 4}
    found = accelerator.predict(result)
    assert found["topology"] == "gpu:h200x1" and found["by"] == "formula"
    assert found["peak_bytes"] > 1e5 and found["milliseconds_an_update_at_least"] > 0
