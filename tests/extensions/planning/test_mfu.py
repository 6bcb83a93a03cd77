"""MFU in metrics.jsonl."""

import jax
import jax.numpy as jnp
import pytest
from helpers.runs import start, tiny_run

from t2t_flax.extensions.planning import mfu as mfu_lib
from t2t_flax.extensions.planning.chips import data_sheet_peak
from t2t_flax.extensions.planning.mfu import measured_peak, mfu
from t2t_flax.training import loop
from t2t_flax.training.progress import read_metrics


def test_mfu_has_two_numerators_and_only_known_denominators():
    values = mfu(200.0, 100.0, 2.0, {"data_sheet": None, "measured": 50.0})
    assert values == {"mfu_hardware_measured": 2.0, "mfu_useful_measured": 1.0}
    assert data_sheet_peak(jax.devices()[0]) is None

    class Device:
        device_kind = "NVIDIA H100 PCIe"

    assert data_sheet_peak(Device()) == 756e12
    assert measured_peak(jnp.float32, size=256) > 1e8


@pytest.mark.parametrize(
    "precision, peak", [("bfloat16", 989e12), ("float32", None), ("tf32", None)]
)
def test_a_data_sheet_counts_in_the_precision_it_is_about(
    tmp_path, cache, monkeypatch, precision, peak
):
    run = start(tiny_run(tmp_path, train=dict(precision=precision)), tmp_path, cache)
    monkeypatch.setattr(mfu_lib, "data_sheet_peak", lambda device: 989e12)
    assert mfu_lib.peaks_of(run)["data_sheet"] == peak


def test_a_run_logs_its_mfu(tmp_path, cache):
    config = tiny_run(tmp_path, steps=6, log=dict(every_steps=2))
    loop.train(start(config, tmp_path, cache), score=None)
    lines = [line for line in read_metrics(tmp_path) if "loss" in line]
    assert [line["step"] for line in lines] == [2, 4, 6]
    for line in lines:
        assert 0 < line["mfu_useful_measured"] < line["mfu_hardware_measured"] < 1.5
        assert not any(name.endswith("data_sheet") for name in line)  # there is none for a CPU


def test_without_the_key_there_is_none(tmp_path, cache):
    config = tiny_run(tmp_path, steps=2, planning=dict(mfu=False))
    loop.train(start(config, tmp_path, cache), score=None)
    assert not any("mfu" in name for line in read_metrics(tmp_path) for name in line)
