"""Runs on several processes that are signalled, killed or damaged go on like undisturbed ones."""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

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
from helpers.refusals import assert_names

from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.progress import read_metrics

pytestmark = pytest.mark.timeout(1500)
STEPS = 20
TWO = dict(mesh_cpu_devices=1)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, cache):
    """The workdir of an uninterrupted run on two processes.

    `logs` beside it has what JAX compiled.
    """
    workdir = tmp_path_factory.mktemp("undisturbed") / "run"
    logs = workdir.parent / "logs"
    with Processes(logs, 2, command(workdir, cache, **TWO), JAX_LOG_COMPILES="1") as processes:
        assert processes.wait() == [0, 0], processes.outputs()
    return workdir


@pytest.mark.slow
def test_several_processes_compile_nothing_after_the_first_update(undisturbed):
    """Includes saving and validation; a compilation would look like a hung process."""
    output = next((undisturbed.parent / "logs").glob("0-*.log")).read_text()
    before, trained = output.split("first update ")
    compiled = [
        line for line in trained.split("time: ")[0].splitlines() if line.startswith("Compiling ")
    ]
    # Orbax slices arrays in the first save, to which `hang_timeout` does not apply.
    assert "Compiling " in before and [line for line in compiled if "jit(slice)" not in line] == []


@pytest.mark.parametrize(
    ("signalled", "resumed_on"),
    [
        pytest.param(1, 1, marks=pytest.mark.slow),
        pytest.param(0, 2, marks=pytest.mark.drill),
        pytest.param(1, 4, marks=pytest.mark.drill),
    ],
    ids=["process 1, then one", "process 0, then two", "process 1, then four"],
)
def test_sigterm_to_one_process_stops_all_and_the_run_resumes(
    undisturbed, tmp_path, cache, signalled, resumed_on
):
    workdir = tmp_path / "run"
    with Processes(tmp_path / "logs", 2, command(workdir, cache, **TWO)) as processes:
        processes.wait_for_step(workdir, 1)  # in good time before the last one
        start = time.monotonic()
        processes.all[signalled].send_signal(signal.SIGTERM)
        assert processes.wait() == [75, 75], processes.outputs()
        seconds = time.monotonic() - start
    step = checkpoints(workdir)[-1]
    assert_names(processes.output(0), "SIGTERM", f"update {step}")
    note(
        f"SIGTERM to process {signalled} of 2: both saved update {step} and ended after {seconds:.1f} s"
    )
    with Processes(tmp_path / "logs", resumed_on, command(workdir, cache, **TWO)) as processes:
        processes.wait_for_step(workdir, step + 1)
        lost = time.monotonic() - start
        assert processes.wait() == [0] * resumed_on, processes.outputs()
    note(
        f"preemption of 2 processes, started again at once on {resumed_on}: {lost:.1f} s from the signal to the next update"
    )
    actual, expected = losses(workdir), losses(undisturbed)
    assert (
        actual.keys() == expected.keys()
        and evaluations(workdir).keys() == evaluations(undisturbed).keys()
    )
    if resumed_on == 2:
        assert actual == expected and evaluations(workdir) == evaluations(undisturbed)
    np.testing.assert_allclose(list(actual.values()), list(expected.values()), rtol=1e-5)
    assert record(workdir, f"test-{STEPS}")["text"] == record(undisturbed, f"test-{STEPS}")["text"]


@pytest.mark.drill
@pytest.mark.slow
def test_signal_interrupts_an_evaluation(tmp_path, cache):
    """The resumed run starts with the interrupted evaluation."""
    workdir = tmp_path / "run"
    keys = TWO | dict(
        eval_every_steps=5, data_valid="toy:train:3000", data_batch_tokens=256, train_steps=10
    )
    with Processes(tmp_path / "logs", 2, command(workdir, cache, **keys)) as processes:
        processes.wait_for_step(workdir, 5)
        processes.all[1].send_signal(signal.SIGTERM)
        start = time.monotonic()
        assert processes.wait() == [75, 75], processes.outputs()
        seconds = time.monotonic() - start
    note(f"SIGTERM during an evaluation: both ended after {seconds:.1f} s")
    assert checkpoints(workdir)[-1] == 5 and 5 not in evaluations(workdir), processes.outputs()
    resume(tmp_path, cache, 2, **keys)
    assert list(evaluations(workdir)) == [5, 10] and len(losses(workdir)) == 10


def damage_checkpoint(workdir: Path, step: int, damage: str) -> None:
    """Damage the largest file of the parameters."""
    files = [
        path
        for path in (workdir / "checkpoints" / str(step) / "params").rglob("*")
        if path.is_file()
    ]
    data = max(files, key=lambda path: path.stat().st_size)
    raw = bytearray(data.read_bytes())
    raw[len(raw) // 2] ^= 0x10
    data.write_bytes(raw[: len(raw) // 2] if damage == "truncated" else raw)


@pytest.mark.slow
def test_signal_during_a_compilation_ends_all_at_once(undisturbed, tmp_path, cache):
    """Two processes start from the checkpoints of a run, the newest of which is damaged.

    The signal comes before the first update.
    """
    workdir = tmp_path / "run"
    shutil.copytree(undisturbed, workdir, ignore=shutil.ignore_patterns("complete.json", "eval"))
    *before, newest = checkpoints(workdir)
    damage_checkpoint(workdir, newest, "flipped byte")
    arguments = command(workdir, cache, **TWO, train_steps=60)
    slowly = dict(JAX_DISABLE_MOST_OPTIMIZATIONS="false", XLA_FLAGS="")
    with Processes(tmp_path / "logs", 2, arguments, **slowly) as processes:
        processes.wait_for_output(0, "resuming")
        processes.all[1].send_signal(signal.SIGTERM)
        start = time.monotonic()
        codes = processes.wait()
        seconds = time.monotonic() - start
        assert set(codes) == {75} and "first update" not in processes.output(0), processes.outputs()
    note(f"SIGTERM during restoring and compiling: both ended after {seconds:.1f} s")
    assert_names(
        processes.output(0) + processes.output(1), f"checkpoint {newest}", "SIGTERM", "compiling"
    )
    assert checkpoints(workdir) == before and [*(workdir / "checkpoints").glob("*.damaged-*")]


@pytest.mark.slow
def test_second_ctrl_c_exits_at_once(tmp_path, cache):
    """The first Ctrl-C waits for the update and saves it."""
    workdir = tmp_path / "run"
    keys = TWO | dict(train_steps=100000, checkpoint_every_steps=100000)
    for attempt in range(4):
        with Processes(
            tmp_path / f"logs{attempt}", 1, command(workdir, cache, **keys)
        ) as processes:
            processes.wait_for_step(
                workdir, 3 + max((line["step"] for line in read_metrics(workdir)), default=0)
            )
            before = checkpoints(workdir)
            processes.all[0].send_signal(signal.SIGINT)
            # Two that are pending would be one.
            while is_pending(processes.all[0].pid, signal.SIGINT):
                time.sleep(0.001)
            processes.all[0].send_signal(signal.SIGINT)
            code = processes.wait()
        # Else the first was saved before the second arrived.
        if code != [75] and before == checkpoints(workdir):
            break
    assert code == [130], processes.outputs()
    assert before == checkpoints(workdir)


def is_pending(pid: int, number: int) -> bool:
    """Whether a process has not yet begun to handle a signal that was sent to it."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(
        int(re.search(r"^ShdPnd:\s+(\w+)", status, re.MULTILINE)[1], 16) >> (number - 1) & 1
    )


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.drill), 1])
@pytest.mark.slow
def test_launcher_finishes_a_run_after_kill_9_of_one_process(undisturbed, tmp_path, cache, victim):
    """In the second case while a checkpoint is being written."""
    kill_and_restart(
        undisturbed, tmp_path, cache, victim, after=7 + 5 * victim, saving=bool(victim)
    )


def kill_and_restart(
    undisturbed, tmp_path, cache, victim: int, after: int, saving: bool = False
) -> None:
    """Kills one process of a launched run, which the launcher restarts and finishes."""
    tmp_path.mkdir(exist_ok=True)
    workdir = tmp_path / "run"
    launcher = [
        str(ROOT / "launch" / "local_pod.sh"),
        "2",
        "--restarts=2",
        "--",
        *command(workdir, cache, **TWO),
    ]
    log = tmp_path / "launcher.log"
    with log.open("w") as out:
        launched = subprocess.Popen(
            launcher,
            env=environment(),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(lambda: losses(workdir), launched, log)
        first = processes_of(workdir)
        wait_until(lambda: after in losses(workdir), launched, log)
        if saving:
            partial = lambda: any((workdir / "checkpoints").glob("*-tmp*"))  # noqa: E731
            wait_until(partial, launched, log, every=0.002)
        assert sorted(first) == [0, 1], log.read_text()
        start = time.monotonic()
        os.kill(first[victim], signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{first[1 - victim]}"), launched, log)
        seconds = time.monotonic() - start
        assert launched.wait(600) == 0, log.read_text()
    finally:
        if launched.poll() is None:
            os.killpg(launched.pid, signal.SIGKILL)
        launched.wait()
    output = log.read_text()
    survivor = re.search(rf"process {1 - victim} of 2 ended with exit code (\d+)", output)
    assert survivor and int(survivor[1]) not in (0, 2, 75), output
    assert losses(workdir) == losses(undisturbed)
    assert record(workdir, f"test-{STEPS}")["text"] == record(undisturbed, f"test-{STEPS}")["text"]
    when = f"after update {after}{', during a save' if saving else ''}"
    note(
        f"kill -9 of process {victim} {when}: the other gone after {seconds:.1f} s; run finished, same losses"
    )


def processes_of(workdir) -> dict[int, int]:
    """Process ids of the run's processes, by their index."""
    pids = {}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                arguments = file.read().split(b"\0")
            with open(f"/proc/{pid}/environ", "rb") as file:
                own = dict(pair.split(b"=", 1) for pair in file.read().split(b"\0") if b"=" in pair)
        except OSError:
            continue
        if f"--workdir={workdir}".encode() in arguments and b"-m" in arguments[:3]:
            pids[int(own.get(b"T2T_PROCESS_ID", b"-1"))] = int(pid)
    return pids


def wait_until(condition, process, log, seconds: float = 400.0, every: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(every)


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_run_survives_ten_kills(undisturbed, tmp_path, cache):
    """Kills either process at ten different updates."""
    for n in range(10):
        kill_and_restart(
            undisturbed,
            tmp_path / str(n),
            cache,
            victim=n % 2,
            after=2 + (7 * n) % 16,
            saving=n in (4, 5),
        )


@pytest.mark.drill
@pytest.mark.slow
def test_full_disk_on_one_host_keeps_the_older_checkpoint(undisturbed, tmp_path, cache):
    """A limit on the size of files stands in for the full disk of one host."""
    workdir = tmp_path / "run"
    plain = command(workdir, cache, **TWO, checkpoint_every_steps=5)
    with Processes(tmp_path / "logs", 2, plain) as processes:
        processes.wait_for(lambda: (workdir / "checkpoints" / "5").is_dir(), "checkpoint 5", 120)
        subprocess.run(["prlimit", f"--pid={processes.all[1].pid}", "--fsize=1000"], check=True)
        start = time.monotonic()
        codes = processes.wait()
    note(
        f"disk full on process 1: both ended {time.monotonic() - start:.1f} s after the limit was set"
    )
    assert all(codes), processes.outputs()
    assert_names(processes.output(0) + processes.output(1), str(workdir / "checkpoints"))
    assert 5 in checkpoints(workdir)
    resume(tmp_path, cache, 2, **TWO)
    assert losses(workdir) == losses(undisturbed)


@pytest.mark.drill
@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flipped byte", "truncated", "empty folder"])
def test_damaged_checkpoint_is_reported_and_an_older_one_used(undisturbed, tmp_path, cache, damage):
    workdir = tmp_path / "run"
    shutil.copytree(undisturbed, workdir, ignore=shutil.ignore_patterns("complete.json", "eval"))
    newest = checkpoints(workdir)[-1]
    if damage == "empty folder":
        (workdir / "checkpoints" / str(newest + 1)).mkdir()
    else:
        damage_checkpoint(workdir, newest, damage)
    resume(tmp_path, cache, 2, **TWO)
    assert losses(workdir) == losses(undisturbed)
    output = "".join(path.read_text() for path in (tmp_path / "logs").iterdir())
    assert_names(output, f"checkpoint {newest + (damage == 'empty folder')}")
    assert [*(workdir / "checkpoints").glob("*.damaged-*")]
    assert Checkpoints(workdir / "checkpoints").steps()[-1] == STEPS
