"""Device-hours of all attempts of a trial."""

import csv
import json
import os
import threading
from types import SimpleNamespace

import pytest
from helpers.thread_groups import wait_until

from t2t_flax.extensions.sweeps import attempts
from t2t_flax.extensions.sweeps.attempts import begin_attempt, device_hours, end_attempt
from t2t_flax.extensions.sweeps.report import report
from t2t_flax.extensions.sweeps.resources import Resources


def set_devices(folder, name, kind="TPU v5 lite", count=16):
    folder.workdir(name).mkdir(parents=True, exist_ok=True)
    (folder.workdir(name) / "devices.json").write_text(json.dumps({"kind": kind, "count": count}))


@pytest.fixture
def clock(monkeypatch):
    """The clock of the accounting, in a list that tests change."""
    now = [1e9]
    monkeypatch.setattr(attempts, "time", SimpleNamespace(time=lambda: now[0]))
    return now


def attempt(sweep, clock, hours, *, stacked=1, sharing=1, **devices):
    """An attempt of the first trial that a worker sees from start to end."""
    name = sweep.names[0]
    begin(sweep, name, stacked, sharing)
    if devices:
        set_devices(sweep.folder, name, **devices)
    clock[0] += hours * 3600
    end_attempt(sweep.folder, name, [name] * stacked, 75, terminated=True, retries=0)


def begin(sweep, name, stacked=1, sharing=1):
    begin_attempt(sweep.folder, name, [name] * stacked, Resources(sharing=sharing))
    os.utime(sweep.folder.log(name), (0, 0))


def test_attempts_add_up_by_kind_of_devices(fake_sweep, clock):
    sweep = fake_sweep({"one": "ok"})
    attempt(sweep, clock, 2, kind="TPU v5 lite", count=16)
    attempt(sweep, clock, 0.5)  # ended before it had devices, and used none
    attempt(sweep, clock, 1, kind="TPU v5 lite", count=8)
    attempt(sweep, clock, 3, stacked=4, kind="TPU v4", count=4)
    attempt(sweep, clock, 6, stacked=2, sharing=3, kind="NVIDIA H100", count=1)  # on one GPU with two other attempts
    clock[0] += 10 * 3600  # nothing trains
    assert device_hours(sweep.folder, sweep.names[0]) == {
        "TPU v5 lite": 40,
        "TPU v4": 3,
        "NVIDIA H100": 1,
    }


def test_attempt_without_a_known_end_counts_until_its_last_output(fake_sweep, clock):
    sweep, name = fake_sweep({"one": "ok"}), "one,seed=0"
    begin(sweep, name)
    set_devices(sweep.folder, name)
    metrics = sweep.folder.workdir(name) / "metrics.jsonl"
    metrics.touch()
    os.utime(metrics, (clock[0] + 1800, clock[0] + 1800))
    clock[0] += 5 * 3600
    assert device_hours(sweep.folder, name) == {"TPU v5 lite": 8}
    claim = sweep.folder.claim(name)  # it still trains
    assert device_hours(sweep.folder, name) == {"TPU v5 lite": 80}
    claim.release()
    attempt(sweep, clock, 1, count=16)
    assert device_hours(sweep.folder, name) == {"TPU v5 lite": 24}


def test_trial_that_is_marked_failed_counts_until_its_last_output(fake_sweep, clock, monkeypatch):
    """The mark in its log, hours after its worker died, is no output of the training."""
    monkeypatch.setattr("t2t_flax.extensions.sweeps.worker.MAX_UNRESOLVED", 1)
    sweep, name = fake_sweep({"one": "ok"}), "one,seed=0"
    begin(sweep, name)
    set_devices(sweep.folder, name)
    metrics = sweep.folder.workdir(name) / "metrics.jsonl"
    metrics.touch()
    os.utime(metrics, (clock[0] + 1800, clock[0] + 1800))
    sweep.work()
    assert sweep.states() == ["failed"] and "died 1 times" in sweep.folder.log(name).read_text()
    assert device_hours(sweep.folder, name) == {"TPU v5 lite": 8}


@pytest.mark.parametrize("behaviour, state", [("ok", "complete"), ("fail", "failed"), ("long", "stopped")])
def test_worker_counts_every_attempt(fake_sweep, behaviour, state):
    sweep, stop = fake_sweep({"one": behaviour}), threading.Event()
    worker = sweep.worker(retries=1, stop=stop)
    thread = threading.Thread(target=worker.run)
    thread.start()
    if state == "stopped":
        wait_until((sweep.folder.workdir("one,seed=0") / "starts").exists)
        stop.set()
    thread.join(250)
    status = sweep.folder.status("one,seed=0")
    assert sweep.states() == [state] and status.began == 0
    assert status.attempts == (2 if state == "failed" else 1)
    assert status.device_seconds == {}  # the stand-in records no devices


def test_report_has_hours_of_trials_rows_and_the_whole(finished_sweep):
    for i, name in enumerate(finished_sweep.names):
        finished_sweep.update_status(name, device_seconds={"TPU v5 lite": 3600.0 * (i + 1)})
    finished_sweep.update_status("poor,seed=1", outcome="failed")
    path = finished_sweep.folder.path
    (finished_sweep.folder.workdir("poor,seed=1") / "complete.json").unlink()
    text = report(path)
    assert "device-hours of all attempts: 21.00 of TPU v5 lite (complete 15.00, failed 6.0000)" in text
    rows = {line["row"]: line for line in csv.DictReader((path / "report" / "table.csv").open())}
    assert rows["good"]["device-hours"] == "3.0000"
    trials = {line["trial"]: line for line in csv.DictReader((path / "report" / "trials.csv").open())}
    assert trials["poor,seed=1"]["device-hours"] == "6.0000"
    assert trials["good,seed=1"]["command"].startswith("python -m t2t_flax train")
    assert "21.00" in (path / "report" / "index.html").read_text()


def test_report_of_a_sweep_without_records_of_devices_has_no_hours(finished_sweep):
    for name in finished_sweep.names:
        finished_sweep.update_status(name, device_seconds={})
    assert "hours of all" not in report(finished_sweep.folder.path)
