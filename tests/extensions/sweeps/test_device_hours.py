"""Device-hours of all attempts of a trial, and their cost."""

import csv
import json
import os
import threading
import time
from collections import Counter

import pytest
from helpers.thread_groups import wait_until

from t2t_flax.errors import UserError
from t2t_flax.extensions.sweeps.device_hours import Bill, Prices, begin_attempt, device_hours, end_attempt
from t2t_flax.extensions.sweeps.report import report


def set_devices(folder, name, kind="TPU v5 lite", count=16):
    folder.workdir(name).mkdir(parents=True, exist_ok=True)
    (folder.workdir(name) / "devices.json").write_text(json.dumps({"kind": kind, "count": count}))


@pytest.fixture
def clock(monkeypatch):
    """The clock of the accounting, in a list that tests change."""
    now = [1e9]
    monkeypatch.setattr("t2t_flax.extensions.sweeps.device_hours.time.time", lambda: now[0])
    return now


def attempt(sweep, clock, hours, *, stacked=1, **devices):
    """An attempt of the first trial that a worker sees from start to end."""
    name = sweep.names[0]
    sweep.update_status(name, **begin_attempt(sweep.folder, name, sweep.folder.status(name), stacked))
    if devices:
        set_devices(sweep.folder, name, **devices)
    clock[0] += hours * 3600
    sweep.update_status(name, **end_attempt(sweep.folder, name, sweep.folder.status(name)))


def test_attempts_add_up_by_kind_of_devices(fake_sweep, clock):
    sweep = fake_sweep({"one": "ok"})
    attempt(sweep, clock, 2, kind="TPU v5 lite", count=16)
    attempt(sweep, clock, 0.5)  # ended before it had devices
    attempt(sweep, clock, 1, kind="TPU v5 lite", count=8)
    attempt(sweep, clock, 3, stacked=4, kind="TPU v4", count=4)
    clock[0] += 10 * 3600  # nothing trains
    assert device_hours(sweep.folder, sweep.names[0]) == {"TPU v5 lite": 40, "": 0.5, "TPU v4": 3}


def test_attempt_without_a_known_end_counts_until_its_last_output(fake_sweep, clock):
    sweep, name = fake_sweep({"one": "ok"}), "one,seed=0"
    sweep.update_status(name, **begin_attempt(sweep.folder, name, sweep.folder.status(name), 1))
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
    sweep.update_status(name, unresolved=1, **begin_attempt(sweep.folder, name, sweep.folder.status(name), 1))
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
    began = time.time()
    thread = threading.Thread(target=worker.run)
    thread.start()
    if state == "stopped":
        wait_until((sweep.folder.workdir("one,seed=0") / "starts").exists)
        stop.set()
    thread.join(30)
    status = sweep.folder.status("one,seed=0")
    assert sweep.states() == [state] and status.began == 0
    assert status.attempts == (2 if state == "failed" else 1)
    assert 0 < status.device_seconds[""] <= time.time() - began + 0.1  # the stand-in records no devices


def test_report_has_hours_and_cost_of_trials_rows_and_the_whole(finished_sweep):
    for i, name in enumerate(finished_sweep.names):
        finished_sweep.update_status(name, device_seconds={"TPU v5 lite": 3600.0 * (i + 1)})
    finished_sweep.update_status("poor,seed=1", outcome="failed")
    path = finished_sweep.folder.path
    (finished_sweep.folder.workdir("poor,seed=1") / "complete.json").unlink()
    text = report(path, prices=Prices.parse(["1.5"]))
    assert "chip-hours of all attempts: 21.00 of TPU v5 lite (complete 15.00, failed 6.0000)" in text
    assert "cost: 31.50, at 1.5 for TPU v5 lite per hour" in text
    rows = {line["row"]: line for line in csv.DictReader((path / "report" / "table.csv").open())}
    assert (rows["good"]["chip-hours"], rows["good"]["cost"]) == ("3.0000", "4.5000")
    trials = {line["trial"]: line for line in csv.DictReader((path / "report" / "trials.csv").open())}
    assert (trials["poor,seed=1"]["chip-hours"], trials["poor,seed=1"]["cost"]) == ("6.0000", "9.0000")
    assert trials["good,seed=1"]["command"].startswith("python -m t2t_flax train")
    assert "31.50" in (path / "report" / "index.html").read_text()
    text = report(path)
    assert "21.00 of TPU v5 lite" in text and "cost:" not in text


def test_report_of_a_sweep_without_records_of_devices_has_no_hours(finished_sweep):
    for name in finished_sweep.names:
        finished_sweep.update_status(name, device_seconds={})
    assert "hours" not in report(finished_sweep.folder.path)


def test_cpu_devices_are_not_called_chips():
    hours = {"a": Counter({"cpu": 2.0})}
    bill = Bill(hours, {"a": "pruned"}, None)
    assert bill.unit == "CPU device-hours"
    assert bill.summary() == "CPU device-hours of all attempts: 2.0000 of CPU devices (pruned 2.0000)"
    mixed = Bill(
        hours | {"b": Counter({"TPU v4": 1.0, "": 0.5})}, {"a": "complete", "b": "complete"}, Prices({"TPU v4": 3.0})
    )
    assert mixed.unit == "device-hours" and mixed.cost("a", "b") == 3.0
    assert "without cpu, which has no --price" in mixed.summary()
    assert "not included: 1800 s of attempts that ended before they had devices" in mixed.summary()


@pytest.mark.parametrize("texts", [["x"], ["-1"], ["nan"], ["inf"], ["=1"], ["1", "2"], ["TPU v4=x"], [""]])
def test_wrong_prices_are_refused(texts):
    with pytest.raises(UserError, match="expected the price of one chip-hour"):
        Prices.parse(texts)


def test_prices_by_kind():
    prices = Prices.parse(["1.2", "TPU v4=3"])
    assert (prices.of("TPU v4"), prices.of("TPU v5 lite")) == (3.0, 1.2)
    assert Prices.parse(["TPU v4=3"]).of("cpu") is None and Prices.parse([]) is None
