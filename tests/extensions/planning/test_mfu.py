"""MFU in metrics.jsonl."""

import jax
import jax.numpy as jnp
from helpers.runs import start, tiny_run

from t2t_flax.extensions.planning.chips import data_sheet_peak
from t2t_flax.extensions.planning.flops import Mfu, measured_peak, mfu, training_products, update_flops
from t2t_flax.training import loop
from t2t_flax.training.progress import read_metrics
from t2t_flax.training.train_state import TrainProgress


def test_mfu_has_two_numerators_and_only_known_denominators():
    values = mfu(200.0, 100.0, 2.0, {"data_sheet": None, "measured": 50.0})
    assert values == {"mfu_hardware_measured": 2.0, "mfu_useful_measured": 1.0}
    assert data_sheet_peak(jax.devices()[0]) is None

    class Device:
        device_kind = "NVIDIA H100 PCIe"

    assert data_sheet_peak(Device()) == 756e12
    assert measured_peak(jnp.float32, size=256) > 1e8


def test_a_run_logs_its_mfu(tmp_path, cache):
    config = tiny_run(tmp_path, steps=6, log=dict(every_steps=2))
    loop.train(start(config, tmp_path, cache), score=None)
    lines = [line for line in read_metrics(tmp_path) if "loss" in line]
    assert [line["step"] for line in lines] == [2, 4, 6]
    for line in lines:
        assert 0 < line["mfu_useful_measured"] < line["mfu_hardware_measured"] < 1.5
        # Both are FLOPs of the same updates over the same time and peak; padding is at least what is not real.
        assert line["mfu_useful_measured"] / line["mfu_hardware_measured"] <= 1
        assert not any(name.endswith("data_sheet") for name in line)  # there is none for a CPU


def test_the_least_time_of_an_update_is_that_at_the_peak(tmp_path, cache, monkeypatch):
    run = start(tiny_run(tmp_path), tmp_path, cache)
    hook, batch = Mfu(), run.batches.batch(0)
    hook.on_start(run, TrainProgress())
    flops, real = update_flops(run, batch, training_products(run.config, run.model.target_vocab, run.abstract.params))
    for peaks in ({"data_sheet": None, "measured": 5e9}, {"data_sheet": 5e9, "measured": 4e9}):
        monkeypatch.setattr(hook, "_peaks", peaks)
        assert hook.least_seconds(batch) == flops / 5e9 > real / 5e9


def test_without_the_key_there_is_none(tmp_path, cache):
    config = tiny_run(tmp_path, steps=2, planning=dict(mfu=False))
    loop.train(start(config, tmp_path, cache), score=None)
    assert not any("mfu" in name for line in read_metrics(tmp_path) for name in line)
