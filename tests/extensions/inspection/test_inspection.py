"""FLOPs in `explain`, MFU in metrics.jsonl and profiles."""

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from helpers.runs import start, tiny_run

from t2t_flax.cli import explain
from t2t_flax.extensions.inspection import profile
from t2t_flax.extensions.inspection.mfu import measured_peak, mfu
from t2t_flax.models.flops import data_sheet_peak
from t2t_flax.monitoring.metrics_writer import read_metrics
from t2t_flax.training import loop


def test_mfu_has_two_numerators_and_only_known_denominators():
    values = mfu(200.0, 100.0, 2.0, {"data_sheet": None, "measured": 50.0})
    assert values == {"mfu_hardware_measured": 2.0, "mfu_useful_measured": 1.0}
    assert data_sheet_peak(jax.devices()[0]) is None

    class Device:
        device_kind = "NVIDIA H100 PCIe"

    assert data_sheet_peak(Device()) == 756e12
    assert measured_peak(jnp.float32, size=256) > 1e8


def test_a_run_logs_its_mfu_and_writes_a_profile(tmp_path, cache):
    config = tiny_run(tmp_path, steps=6, log=dict(every_steps=2), inspection=dict(profile_steps=(3, 4)))
    loop.train(start(config, tmp_path, cache), score=None)
    lines = [line for line in read_metrics(tmp_path) if "loss" in line]
    assert [line["step"] for line in lines] == [2, 4, 6]
    for line in lines:
        assert 0 < line["mfu_useful_measured"] < line["mfu_hardware_measured"] < 1.5
        # Both are FLOPs of the same updates over the same time and peak; padding is at least what is not real.
        assert line["mfu_useful_measured"] / line["mfu_hardware_measured"] <= 1
        assert not any(name.endswith("data_sheet") for name in line)  # there is none for a CPU
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_without_the_key_there_is_neither(tmp_path, cache):
    config = tiny_run(tmp_path, steps=2, inspection=dict(mfu=False))
    loop.train(start(config, tmp_path, cache), score=None)
    assert not any("mfu" in name for line in read_metrics(tmp_path) for name in line)
    assert not (tmp_path / "profile").exists()


def test_profile_in_an_object_store_is_copied_when_it_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "is_remote", lambda path: True)
    monkeypatch.setattr(profile, "copy_file", lambda source, target: sent.append((Path(source).read_bytes(), target)))
    sent: list = []
    trace = profile.Profile(tmp_path / "profile", (2, 3))
    trace.on_start(None, SimpleNamespace(step=0))
    for step in range(1, 5):
        jnp.ones(3).sum().block_until_ready()
        assert step > 3 or not sent
        trace.on_update(step, None, {})
    assert any(content and target.match("*/profile/plugins/profile/*/*.xplane.pb") for content, target in sent)


def test_of_two_runs_in_a_process_one_is_traced(tmp_path):
    first, second = (profile.Profile(tmp_path / name, (1, 1)) for name in "ab")
    for trace in (first, second):
        trace.on_start(None, SimpleNamespace(step=0))
    for trace in (second, first):
        trace.on_update(1, None, {})
    assert list((tmp_path / "a").rglob("*.xplane.pb")) and not (tmp_path / "b").exists()


def test_explain_has_the_flops_of_the_big_model(capsys):
    assert explain.run(["--config=aiayn_big"]) == 0
    out = capsys.readouterr().out
    assert "FLOPs of training per target token" in out and "pairs of  27 +  27 tokens" in out
    (million,) = (float(row.split()[-2].replace(",", "")) for row in out.splitlines() if "27 +  27 tokens" in row)
    assert million == pytest.approx(1290, rel=0.05)
