"""Sweeps whose worker is a pod of two real processes."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from helpers.processes import KEYS, ROOT, Processes, environment, evaluations, losses, note, record

from t2t_flax.extensions.sweeps.folder import Folder, read_sweep

pytestmark = [pytest.mark.timeout(3000), pytest.mark.slow]
LAST = "dropout=0.2,seed=0"
"""The trial of ONE_TRIAL."""
ONE_TRIAL = "--set=model.dropout=0.2"


def command(path, cache, *flags, **keys) -> list[str]:
    keys = (
        KEYS | {"data.cache": str(cache), "mesh.cpu_devices": 1} | {k.replace("_", ".", 1): v for k, v in keys.items()}
    )
    if any(flag.startswith("--set=model.dropout=") for flag in flags):
        del keys["model.dropout"]
    overrides = [f"--config.{key}={value}" for key, value in keys.items()]
    train = f"--config={ROOT / 'configs' / 'toy.py'}"
    return [sys.executable, "-m", "t2t_flax", "sweep", train, f"--workdir={path}", *flags, *overrides]


def run(path, logs, words, count=2) -> Processes:
    with Processes(logs, count, words) as processes:
        assert processes.wait(1500) == [0] * count, processes.outputs()
    return processes


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache):
    """The folder of an uninterrupted sweep on two processes."""
    path = tmp_path_factory.mktemp("whole") / "sweep"
    run(path, path.parent / "logs", command(path, cache, ONE_TRIAL))
    return path


def assert_same_trial(path, other):
    """Equal curve, scores and translations."""
    a, b = (Folder(p).workdir(LAST) for p in (path, other))
    assert losses(a) == losses(b) and evaluations(a) == evaluations(b)
    a, b = record(a, "test-20"), record(b, "test-20")
    assert a["scores"] == b["scores"] and a["text"] == b["text"]


def training_of(process) -> psutil.Process:
    """The training that this process of the worker has started."""
    return psutil.Process(process.pid).children()[0]


def stopped(host: int, number: signal.Signals, path: Path, logs: Path, words: list[str]) -> Processes:
    """A pod of two that a signal to one host has stopped in the trial LAST."""
    with Processes(logs, 2, words) as processes:
        processes.wait_for_step(Folder(path).workdir(LAST), 7, 900)
        processes.all[host].send_signal(number)
        assert processes.wait(300) == [75, 75], processes.outputs()
    return processes


def test_both_hosts_train_each_trial_once(tmp_path, cache):
    """Two updates and an evaluation, without decoding."""
    path, rows = tmp_path / "sweep", ["dropout=0.0,seed=0", "dropout=0.2,seed=0"]
    words = command(path, cache, "--set=model.dropout=0.0,0.2", train_steps=2, eval_every_steps=2, data_test="")
    processes, folder = run(path, tmp_path / "logs", words), Folder(path)
    for name in rows:
        assert folder.state(name) == "complete" and folder.status(name).attempts == 1
        assert "devices: 2 x cpu of 2 processes" in folder.log(name).read_text()
        assert "process 1 of 2" in folder.log(name, 1).read_text()
        assert json.loads((folder.workdir(name) / "devices.json").read_text()) == {"kind": "cpu", "count": 2}
        assert list(folder.status(name).device_seconds) == ["cpu"]
    assert "2 complete" in processes.output(0) and "device-hours of all attempts" in processes.output(0)
    assert "complete" not in processes.output(1), "process 0 alone reports"


@pytest.mark.drill
def test_sigterm_to_one_host_stops_both_and_the_sweep_continues(whole, tmp_path, cache):
    path, words = tmp_path / "sweep", command(tmp_path / "sweep", cache, ONE_TRIAL)
    folder = Folder(path)
    processes = stopped(1, signal.SIGTERM, path, tmp_path / "logs", words)
    assert "stopped, everything saved" in processes.output(0)
    assert folder.state(LAST) == "stopped" and folder.holder(LAST) is None
    assert folder.status(LAST).unresolved == 0 and folder.newest_step(LAST) >= 7
    run(path, tmp_path / "logs", [sys.executable, "-m", "t2t_flax", "sweep", f"--workdir={path}"])
    assert folder.status(LAST).attempts == 2
    assert_same_trial(path, whole)


@pytest.mark.drill
@pytest.mark.parametrize("host", [1, pytest.param(0, id="the lead")])
def test_killed_host_ends_the_other_and_the_next_worker_resumes(whole, tmp_path, cache, host):
    path, words = tmp_path / "sweep", command(tmp_path / "sweep", cache, ONE_TRIAL)
    folder = Folder(path)
    with Processes(tmp_path / "logs", 2, words) as processes:
        processes.wait_for_step(folder.workdir(LAST), 7, 900)
        training = training_of(processes.all[host])
        processes.all[host].kill()
        training.kill()
        codes = processes.wait(300)
        assert codes[host] == -9 and codes[1 - host] not in (0, 2, 75), processes.outputs()
    note(f"kill -9 of host {host} of a worker of two: the other process ends with {codes[1 - host]}")
    assert folder.state(LAST) == "stopped"
    again = run(path, tmp_path / "logs", words)
    assert folder.status(LAST).attempts == 2 and f"{LAST}: resumes" in again.output(0)
    assert_same_trial(path, whole)


@pytest.mark.drill
def test_killed_training_on_one_host_is_repeated_on_both(whole, tmp_path, cache):
    path, words = tmp_path / "sweep", command(tmp_path / "sweep", cache, ONE_TRIAL)
    folder = Folder(path)
    with Processes(tmp_path / "logs", 2, words) as processes:
        processes.wait_for_step(folder.workdir(LAST), 7, 900)
        training_of(processes.all[1]).kill()
        assert processes.wait(1500) == [0, 0], processes.outputs()
    assert folder.status(LAST).attempts == 2 and "will be retried" in processes.output(0)
    assert_same_trial(path, whole)


@pytest.mark.drill
def test_pruned_trial_ends_on_both_hosts(tmp_path, cache):
    """With this seed the search draws a good learning rate and then one near zero, which successive halving stops."""
    pytest.importorskip("optuna")
    (tmp_path / "search.py").write_text(
        "from t2t_flax.extensions.sweeps.space import Search, Sweep, choice\n"
        "def get_sweep():\n"
        "    space = {'optimizer.peak_lr': choice(1e-9, 1e-3)}\n"
        "    options = dict(count=2, metric='valid_nll', method='random', prune='halving', seed=4)\n"
        "    return Sweep(search=Search(space, **options))\n"
    )
    path = tmp_path / "sweep"
    words = command(path, cache, f"--sweep={tmp_path / 'search.py'}", train_steps=120, data_test="")
    processes = run(path, tmp_path / "logs", words)
    folder = Folder(path)
    good, poor = read_sweep(path)["trials"]
    assert (folder.state(good), folder.state(poor)) == ("complete", "pruned"), processes.outputs()
    assert f"{poor}: pruned" in processes.output(0)
    assert "stopped by SIGTERM" in folder.log(poor).read_text() and max(losses(folder.workdir(poor))) < 120
    assert folder.status(poor).device_seconds["cpu"] > 0 and folder.holder(poor) is None


@pytest.mark.drill
def test_one_process_continues_the_sweep_of_a_pod(whole, tmp_path, cache):
    path, words = tmp_path / "sweep", command(tmp_path / "sweep", cache, ONE_TRIAL)
    stopped(0, signal.SIGINT, path, tmp_path / "logs", words)
    result = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    a, b = (losses(Folder(p).workdir(LAST)) for p in (path, whole))
    assert a.keys() == b.keys() and all(a[k] == pytest.approx(b[k], rel=1e-4) for k in a)
