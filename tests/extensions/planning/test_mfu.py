"""MFU in metrics.jsonl."""

import jax
import jax.numpy as jnp
import pytest
from helpers.runs import start, tiny_run

from t2t_flax.data.batching.window_layouts import Ahead
from t2t_flax.extensions.planning import flops
from t2t_flax.extensions.planning.chips import data_sheet_peak
from t2t_flax.extensions.planning.flops import Mfu, measured_peak, mfu, shortage, training_products, update_flops
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


@pytest.mark.parametrize("precision, peak", [("bfloat16", 989e12), ("float32", None), ("tf32", None)])
def test_a_data_sheet_counts_in_the_precision_it_is_about(tmp_path, cache, monkeypatch, precision, peak):
    run = start(tiny_run(tmp_path, train=dict(precision=precision)), tmp_path, cache)
    monkeypatch.setattr(flops, "data_sheet_peak", lambda device: 989e12)
    assert flops.peaks_of(run)["data_sheet"] == peak


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
    hook, batch = Mfu(print), run.batches.batch(0)
    hook.on_start(run, TrainProgress())
    in_slots, real = update_flops(
        run, batch, training_products(run.config, run.model.target_vocab, run.abstract.params)
    )
    for peaks in ({"data_sheet": None, "measured": 5e9}, {"data_sheet": 5e9, "measured": 4e9}):
        monkeypatch.setattr(hook, "_peaks", peaks)
        assert hook.least_seconds(in_slots) == in_slots / 5e9 > real / 5e9


def test_without_the_key_there_is_none(tmp_path, cache):
    config = tiny_run(tmp_path, steps=2, planning=dict(mfu=False))
    loop.train(start(config, tmp_path, cache), score=None)
    assert not any("mfu" in name for line in read_metrics(tmp_path) for name in line)


@pytest.mark.parametrize("seconds", [0.0, 7190.0])
def test_train_says_how_many_cores_would_do(tmp_path, cache, monkeypatch, seconds, capsys):
    """`seconds`: those of a core that the layout of an update seems to take."""
    monkeypatch.setattr(Ahead, "seconds", property(lambda self: seconds, lambda self, value: None), raising=False)
    monkeypatch.setattr(Mfu, "least_seconds", lambda self, flops: 20.0 * (flops > 0))
    loop.train(start(tiny_run("", steps=4, data=dict(num_workers=1)), tmp_path, cache), score=None)
    lines = [line for line in capsys.readouterr().out.splitlines() if "cores would do" in line]
    assert len(lines) == (1 if seconds else 0)
    assert not seconds or "update takes them 20.0000 s" in lines[0] and "361 cores would do" in lines[0]


@pytest.mark.parametrize(("seconds", "cores"), [(7.9, 5), (1.9, 0), (0.001, 0)])
def test_cores_follow_from_the_time_of_a_batch(seconds, cores):
    """Enough for the layout and the arrays, and one for the process that trains; nothing is said where there are enough."""
    assert f"{cores} cores would do" in shortage(seconds, 2.0, 2) if cores else not shortage(seconds, 2.0, 2)
    assert ("takes them 0.0050 s" in shortage(seconds, 0.0, 2)) == (seconds > 1)
