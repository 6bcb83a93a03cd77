"""Signals and faults: what several processes do when one is told to stop, dies, hangs or cannot write."""

import os
import shutil
import signal
import subprocess
import threading
import time

import numpy as np
import pytest
from several import ROOT, Processes, command, environment, evaluations, losses, record

from t2t_flax.training.checkpoint import Checkpoints

STEPS = 30
TWO = dict(mesh_cpu_devices=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache):
    """The run on two processes that nothing disturbed."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    with Processes(workdir.parent / "logs", 2, command(workdir, cache, **TWO)) as pod:
        assert pod.wait() == [0, 0], pod.outputs()
    return workdir


def checkpoints(workdir) -> list[int]:
    return sorted(int(p.name) for p in (workdir / "checkpoints").iterdir() if p.name.isdigit())


def resume(tmp_path, cache, count, **keys):
    with Processes(tmp_path / "logs", count, command(tmp_path / "run", cache, **keys)) as pod:
        assert pod.wait() == [0] * count, pod.outputs()
    assert "resuming" in pod.output(0)


@pytest.mark.parametrize(
    ("told", "then"),
    [(1, 1), (0, 2), pytest.param(1, 4, marks=pytest.mark.slow)],
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
    print(f"both ended {seconds:.1f} s after the signal, at update {step}")
    resume(tmp_path, cache, then, **TWO)
    mine, expected = losses(workdir), losses(whole)
    assert mine.keys() == expected.keys() and evaluations(workdir).keys() == evaluations(whole).keys()
    if then == 2:
        assert mine == expected and evaluations(workdir) == evaluations(whole)
    np.testing.assert_allclose(list(mine.values()), list(expected.values()), rtol=1e-5)
    assert record(workdir, f"test-{STEPS}")["text"] == record(whole, f"test-{STEPS}")["text"]


def test_a_signal_during_an_evaluation_is_not_kept_waiting(tmp_path, cache):
    """The evaluation is given up, and is the first thing that the resumed run does."""
    workdir = tmp_path / "run"
    keys = TWO | dict(eval_every_steps=5, data_valid="toy:valid:3000", data_batch_tokens=256, train_steps=10)
    with Processes(tmp_path / "logs", 2, command(workdir, cache, **keys)) as pod:
        pod.until_step(workdir, 5)
        pod.all[1].send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert pod.wait(60) == [75, 75], pod.outputs()
        assert time.monotonic() - began < 20
    assert checkpoints(workdir)[-1] == 5 and 5 not in evaluations(workdir), pod.outputs()
    resume(tmp_path, cache, 2, **keys)
    assert list(evaluations(workdir)) == [5, 10] and len(losses(workdir)) == 10


def test_a_signal_during_a_compilation_ends_all_at_once(whole, tmp_path, cache):
    """Four processes start from the checkpoints of a run; the signal comes before the first update."""
    workdir = tmp_path / "run"
    shutil.copytree(whole, workdir, ignore=shutil.ignore_patterns("complete.json", "eval"))
    before = checkpoints(workdir)
    arguments = command(workdir, cache, **TWO, train_steps=60)
    with Processes(tmp_path / "logs", 2, arguments, JAX_DISABLE_MOST_OPTIMIZATIONS="false") as pod:
        pod.until_said(0, "resuming")
        pod.all[1].send_signal(signal.SIGTERM)
        began = time.monotonic()
        codes = pod.wait(30)
        assert time.monotonic() - began < 8 and set(codes) == {75}, pod.outputs()
    assert "given up" in pod.output(0) + pod.output(1)
    assert checkpoints(workdir) == before


@pytest.mark.parametrize("victim", [0, 1])
def test_kill_9_of_one_ends_the_others_and_the_launcher_finishes_the_run(whole, tmp_path, cache, victim):
    kill_and_restart(whole, tmp_path, cache, victim, after=7 + 5 * victim)


def kill_and_restart(whole, tmp_path, cache, victim: int, after: int) -> float:
    """Kills a process of a launched pod once; returns the seconds until the other was gone."""
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
    assert "the connection to another process broke" in said or "another task died" in said, said
    assert losses(workdir) == losses(whole)
    assert record(workdir, f"test-{STEPS}")["text"] == record(whole, f"test-{STEPS}")["text"]
    return seconds


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


def wait_until(true, process, log, seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(0.05)


@pytest.mark.slow
def test_kill_9_ten_times(whole, tmp_path, cache):
    """At ten updates, either process; times go to the log that T2T_FLAX_KILL_LOG names."""
    rows = []
    for n in range(10):
        victim, after = n % 2, 2 + (7 * n) % 26
        seconds = kill_and_restart(whole, tmp_path / str(n), cache, victim, after)
        rows.append(f"process {victim} killed after update {after}: the other gone after {seconds:.2f} s, run finished")
    log = os.environ.get("T2T_FLAX_KILL_LOG")
    if log:
        with open(log, "w") as file:
            file.write("\n".join(rows) + "\n")


def test_a_hung_process_is_named_and_the_run_ends(tmp_path, cache):
    workdir = tmp_path / "run"
    arguments = command(workdir, cache, **TWO, distributed_hang_timeout=5, train_steps=2000, eval_every_steps=0)
    with Processes(tmp_path / "logs", 2, arguments) as pod:
        pod.until_step(workdir, 5)
        pod.all[1].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        assert pod.all[0].wait(60) == 1, pod.outputs()
        seconds = time.monotonic() - began
        said = pod.output(0)
    assert 4 < seconds < 25
    assert "no update for" in said and "hang_timeout = 5" in said and "Late: process 1 on" in said, said
    assert "Thread 0x" in said and "loop.py" in said
    assert "loop.py" in (workdir / "stacks" / "process-0.txt").read_text()


def test_a_straggler_is_named_with_its_share(tmp_path, cache):
    """One process gets the processor a quarter of the time."""
    workdir = tmp_path / "run"
    arguments = command(workdir, cache, **TWO, train_steps=100000, eval_every_steps=0, log_every_steps=20)
    with Processes(tmp_path / "logs", 2, arguments) as pod:
        pod.until_step(workdir, 20)
        done = threading.Event()

        def slow():
            while not done.is_set():
                pod.all[1].send_signal(signal.SIGSTOP)
                time.sleep(0.045)
                pod.all[1].send_signal(signal.SIGCONT)
                time.sleep(0.015)

        thread = threading.Thread(target=slow)
        thread.start()
        try:
            pod.until_said(0, "straggler: process 1 on", 90)
        finally:
            done.set()
            thread.join()
    assert "the others wait for it up to" in pod.output(0)


def test_folders_that_are_not_shared_are_told(tmp_path, cache):
    arguments = [command(tmp_path / name, cache, **TWO) for name in ("a", "b")]
    with Processes(tmp_path / "logs", 2, arguments) as pod:
        assert pod.wait(120) == [2, 2], pod.outputs()
    for i in (0, 1):
        assert "is not shared" in pod.output(i) and "process 1 on" in pod.output(i)
    assert not (tmp_path / "a" / "config.json").exists()


def test_a_missing_coordinator_is_said_before_waiting_and_given_up(tmp_path, cache):
    env = dict(T2T_NUM_PROCESSES="2", T2T_PROCESS_ID="1", JAX_COORDINATOR_ADDRESS="127.0.0.1:9")
    arguments = command(tmp_path / "run", cache, distributed_initialization_timeout=2)
    done = subprocess.run(arguments, env=environment(**env), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "coordinator at 127.0.0.1:9, waiting at most 2 s" in done.stdout
    assert "no coordinator answers at 127.0.0.1:9 after 2 s" in done.stderr


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (dict(T2T_NUM_PROCESSES="2", T2T_PROCESS_ID="0"), "JAX_COORDINATOR_ADDRESS not set"),
        (
            dict(T2T_NUM_PROCESSES="2", T2T_PROCESS_ID="2", JAX_COORDINATOR_ADDRESS="a:1"),
            "T2T_PROCESS_ID = 2 is not one",
        ),
        (dict(T2T_NUM_PROCESSES="2", T2T_PROCESS_ID="x", JAX_COORDINATOR_ADDRESS="a:1"), "must be whole numbers"),
        (dict(T2T_NUM_PROCESSES="2", T2T_PROCESS_ID="1", JAX_COORDINATOR_ADDRESS="a"), "expected HOST:PORT"),
    ],
)
def test_variables_that_do_not_fit(env, said, monkeypatch):
    from t2t_flax.config import Distributed
    from t2t_flax.errors import UserError
    from t2t_flax.parallel.start import start

    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=said):
        start(Distributed())


def test_a_full_disk_on_one_host_ends_all_and_leaves_the_older_checkpoint(whole, tmp_path, cache):
    """A limit on the size of files stands in for the full disk of one host."""
    workdir = tmp_path / "run"
    plain = command(workdir, cache, **TWO, checkpoint_every_steps=5)
    with Processes(tmp_path / "logs", 2, plain) as pod:
        pod.until(lambda: (workdir / "checkpoints" / "5").is_dir(), "checkpoint 5", 120)
        subprocess.run(["prlimit", f"--pid={pod.all[1].pid}", "--fsize=1000"], check=True)
        codes = pod.wait(120)
    assert all(codes), pod.outputs()
    assert "could not write a checkpoint" in pod.output(0) + pod.output(1), pod.outputs()
    assert 5 in checkpoints(workdir)
    resume(tmp_path, cache, 2, **TWO)
    assert losses(workdir) == losses(whole)


@pytest.mark.parametrize("damage", ["flipped byte", "truncated", "empty folder"])
def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(whole, tmp_path, cache, damage):
    workdir = tmp_path / "run"
    shutil.copytree(whole, workdir, ignore=shutil.ignore_patterns("complete.json", "eval"))
    steps = checkpoints(workdir)
    newest = workdir / "checkpoints" / str(steps[-1])
    if damage == "empty folder":
        (workdir / "checkpoints" / str(steps[-1] + 1)).mkdir()
    else:
        data = max((p for p in (newest / "params").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
        raw = bytearray(data.read_bytes())
        raw[len(raw) // 2] ^= 0x10
        data.write_bytes(raw[: len(raw) // 2] if damage == "truncated" else raw)
    resume(tmp_path, cache, 2, **TWO)
    assert losses(workdir) == losses(whole)
    assert any((workdir / "damaged").iterdir())
    assert Checkpoints(workdir / "checkpoints").steps()[-1] == STEPS
