"""A worker of two real processes whose trainings are stand-ins: signals and deaths between the processes of `sweep`."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_sweep import FakeSweep
from helpers.processes import ROOT, Processes, environment, note

SWEEPS = Path(__file__).parent
pytestmark = [pytest.mark.timeout(1500), pytest.mark.slow]
BEHAVIOURS = {"slow": "long", "other": "ok"}
WORKER = f"""
import sys
from pathlib import Path
import fake_sweep
from t2t_flax.__main__ import main
sweep = fake_sweep.FakeSweep(Path(sys.argv[1]), {BEHAVIOURS!r})
fake_sweep.attempts.training_command = sweep.training_command
sys.exit(main(["sweep", "--workdir=" + sys.argv[1], "--score=nll"]))
"""


@pytest.fixture
def worker(tmp_path):
    """(sweep, processes) of a worker whose first trial trains on both."""
    sweep = FakeSweep(tmp_path / "sweep", BEHAVIOURS)
    words = [sys.executable, "-c", WORKER, str(sweep.folder.path)]
    path = os.pathsep.join([str(ROOT), str(SWEEPS)])
    with Processes(tmp_path / "logs", 2, words, PYTHONPATH=path) as processes:
        starts = sweep.folder.workdir("slow,seed=0") / "starts"
        processes.wait_for(lambda: starts.exists() and sweep.starts("slow,seed=0") == 2, "both trainings", 400.0)
        yield sweep, processes


def finish(sweep) -> None:
    """A worker of one process trains what is left."""
    words = [sys.executable, "-c", WORKER, str(sweep.folder.path)]
    env = environment() | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(SWEEPS)])}
    result = subprocess.run(words, env=env, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "slow,seed=0: resumes" in result.stdout and sweep.states() == ["complete", "complete"]


@pytest.mark.parametrize("host", [pytest.param(0, marks=pytest.mark.drill), 1])
def test_signal_to_one_process_stops_both_with_75(worker, host):
    sweep, processes = worker
    processes.all[host].send_signal(signal.SIGTERM)
    assert processes.wait() == [75, 75], processes.outputs()
    assert sweep.states() == ["stopped", "waiting"] and sweep.folder.holder("slow,seed=0") is None
    status = sweep.folder.status("slow,seed=0")
    assert (status.attempts, status.unresolved, status.failures) == (1, 0, 0)
    finish(sweep)


@pytest.mark.parametrize("host", [0, 1])
def test_killed_process_ends_the_other_and_another_worker_continues(worker, host):
    """The training of each is stopped as well, by its parent's death."""
    sweep, processes = worker
    processes.all[host].kill()
    codes = processes.wait()
    assert codes[host] == -9 and codes[1 - host] not in (0, 2, 75), processes.outputs()
    note(f"kill -9 of process {host} of a worker of two: the other ends with {codes[1 - host]}")
    if host == 1:
        assert "process 1 on" in processes.output(0), processes.output(0)
    finish(sweep)
