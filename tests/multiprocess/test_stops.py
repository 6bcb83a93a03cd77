"""Signals and faults: what several processes do when one is told to stop, dies, hangs or cannot write."""

import os
import re
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from helpers.processes import (
    ROOT,
    Processes,
    checkpoints,
    command,
    environment,
    evaluations,
    losses,
    note,
    record,
    resume,
)

from t2t_flax.monitoring.metrics_writer import read_metrics

pytestmark = pytest.mark.timeout(600)
STEPS = 30
TWO = dict(mesh_cpu_devices=1)


@pytest.mark.parametrize(
    ("told", "then"),
    [(1, 1), (0, 2), pytest.param(1, 4, marks=pytest.mark.drill)],
    ids=["process 1, then one", "process 0, then two", "process 1, then four"],
)
def test_a_signal_to_one_stops_all_at_one_update(whole, tmp_path, cache, told, then):
    workdir = tmp_path / "run"
    with Processes(tmp_path / "logs", 2, command(workdir, cache, **TWO)) as pod:
        pod.until_step(workdir, 4)
        began = time.monotonic()
        pod.all[told].send_signal(signal.SIGTERM)
        assert pod.wait(60) == [75, 75], pod.outputs()
        seconds = time.monotonic() - began
    step = checkpoints(workdir)[-1]
    assert f"stopped by SIGTERM after update {step}, saved" in pod.output(0)
    note(f"SIGTERM to process {told} of 2: both saved update {step} and ended after {seconds:.1f} s")
    with Processes(tmp_path / "logs", then, command(workdir, cache, **TWO)) as pod:
        pod.until_step(workdir, step + 1)
        lost = time.monotonic() - began
        assert pod.wait() == [0] * then, pod.outputs()
    note(f"preemption of 2 processes, started again at once on {then}: {lost:.1f} s from the signal to the next update")
    mine, expected = losses(workdir), losses(whole)
    assert mine.keys() == expected.keys() and evaluations(workdir).keys() == evaluations(whole).keys()
    if then == 2:
        assert mine == expected and evaluations(workdir) == evaluations(whole)
    np.testing.assert_allclose(list(mine.values()), list(expected.values()), rtol=1e-5)
    assert record(workdir, f"test-{STEPS}")["text"] == record(whole, f"test-{STEPS}")["text"]


def test_a_signal_during_an_evaluation_is_not_kept_waiting(tmp_path, cache):
    """The evaluation is given up, and is the first thing that the resumed run does."""
    workdir = tmp_path / "run"
    keys = TWO | dict(eval_every_steps=5, data_valid="toy:train:3000", data_batch_tokens=256, train_steps=10)
    with Processes(tmp_path / "logs", 2, command(workdir, cache, **keys)) as pod:
        pod.until_step(workdir, 5)
        pod.all[1].send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert pod.wait(60) == [75, 75], pod.outputs()
        seconds = time.monotonic() - began
        assert seconds < 30
    note(f"SIGTERM during an evaluation: both ended after {seconds:.1f} s")
    assert checkpoints(workdir)[-1] == 5 and 5 not in evaluations(workdir), pod.outputs()
    resume(tmp_path, cache, 2, **keys)
    assert list(evaluations(workdir)) == [5, 10] and len(losses(workdir)) == 10


def test_a_signal_during_a_compilation_ends_all_at_once(whole, tmp_path, cache):
    """Two processes start from the checkpoints of a run; the signal comes before the first update."""
    workdir = tmp_path / "run"
    shutil.copytree(whole, workdir, ignore=shutil.ignore_patterns("complete.json", "eval"))
    before = checkpoints(workdir)
    arguments = command(workdir, cache, **TWO, train_steps=60)
    slowly = dict(JAX_DISABLE_MOST_OPTIMIZATIONS="false", XLA_FLAGS="")
    with Processes(tmp_path / "logs", 2, arguments, **slowly) as pod:
        pod.until_said(0, "resuming")
        pod.all[1].send_signal(signal.SIGTERM)
        began = time.monotonic()
        codes = pod.wait(30)
        seconds = time.monotonic() - began
        assert seconds < 8 and set(codes) == {75}, pod.outputs()
    note(f"SIGTERM during restoring and compiling: both ended after {seconds:.1f} s")
    assert "while restoring and compiling: given up" in pod.output(0) + pod.output(1)
    assert checkpoints(workdir) == before


def test_a_second_ctrl_c_ends_at_once(tmp_path, cache):
    """The first waits for the update and saves it."""
    workdir = tmp_path / "run"
    keys = TWO | dict(train_steps=100000, checkpoint_every_steps=100000)
    for attempt in range(4):
        with Processes(tmp_path / f"logs{attempt}", 1, command(workdir, cache, **keys)) as pod:
            pod.until_step(workdir, 3 + max((line["step"] for line in read_metrics(workdir)), default=0))
            before = checkpoints(workdir)
            pod.all[0].send_signal(signal.SIGINT)
            time.sleep(0.01)
            pod.all[0].send_signal(signal.SIGINT)
            code = pod.wait(90)
        if code != [75]:  # on a busy machine the first may be done before the second comes
            break
    assert code == [130], pod.outputs()
    assert "interrupted twice: ends at once" in pod.output(0)
    assert before == checkpoints(workdir)


@pytest.mark.parametrize("victim", [0, 1])
def test_kill_9_of_one_ends_the_others_and_the_launcher_finishes_the_run(whole, tmp_path, cache, victim):
    """The second in the middle of writing a checkpoint."""
    kill_and_restart(whole, tmp_path, cache, victim, after=7 + 5 * victim, saving=bool(victim))


def kill_and_restart(whole, tmp_path, cache, victim: int, after: int, saving: bool = False) -> None:
    """Kills a process of a launched pod once; the launcher finishes the run."""
    tmp_path.mkdir(exist_ok=True)
    workdir = tmp_path / "run"
    launcher = [str(ROOT / "launch" / "local_pod.sh"), "2", "--restarts=2", "--", *command(workdir, cache, **TWO)]
    log = tmp_path / "launcher.log"
    with log.open("w") as out:
        pod = subprocess.Popen(
            launcher, env=environment(), stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        wait_until(lambda: after in losses(workdir) if workdir.exists() else False, pod, log)
        first = processes_of(workdir)
        if saving:
            partial = lambda: any("-tmp" in p.name for p in (workdir / "checkpoints").iterdir())  # noqa: E731
            wait_until(partial, pod, log, every=0.002)
        assert sorted(first) == [0, 1], log.read_text()
        began = time.monotonic()
        os.kill(first[victim], signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{first[1 - victim]}"), pod, log, 20.0)
        seconds = time.monotonic() - began
        assert pod.wait(240) == 0, log.read_text()
    finally:
        if pod.poll() is None:
            os.killpg(pod.pid, signal.SIGKILL)
        pod.wait()
    said = log.read_text()
    assert "restart 1 of 2" in said
    survivor = re.search(rf"process {1 - victim} of 2 ended with exit code (\d+)", said)
    assert survivor and int(survivor[1]) not in (0, 2, 75), said
    assert "the connection to another process broke" in said or "another task died" in said, said
    assert losses(workdir) == losses(whole)
    assert record(workdir, f"test-{STEPS}")["text"] == record(whole, f"test-{STEPS}")["text"]
    when = f"after update {after}{', during a save' if saving else ''}"
    note(f"kill -9 of process {victim} {when}: the other gone after {seconds:.1f} s; run finished, same losses")


def processes_of(workdir) -> dict[int, int]:
    """Process ids of the pod's members, by their number."""
    found = {}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            with open(f"/proc/{pid}/environ", "rb") as file:
                own = dict(pair.split(b"=", 1) for pair in file.read().split(b"\0") if b"=" in pair)
        except OSError:
            continue
        if f"--workdir={workdir}".encode() in words and b"-m" in words[:3]:
            found[int(own.get(b"T2T_PROCESS_ID", b"-1"))] = int(pid)
    return found


def wait_until(true, process, log, seconds: float = 180.0, every: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(every)


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_kill_9_ten_times(whole, tmp_path, cache):
    """At ten updates, either process."""
    for n in range(10):
        kill_and_restart(whole, tmp_path / str(n), cache, victim=n % 2, after=2 + (7 * n) % 26, saving=n in (4, 5))
