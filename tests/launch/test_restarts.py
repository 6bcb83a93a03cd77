"""launch/restarts.py: restarts, and a job of SLURM, with stand-ins for SLURM's programs."""

import os
import shutil
import signal
import subprocess

import pytest
from helpers.cloud_programs import LAUNCH, launch_module

restarts = launch_module("restarts")
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([0, 0, 0], 0), ([75, 75, 75], 75), ([0, 75, 0], 75), ([75, 1, 75], 1), ([0, 1, 0], 1), ([0, 0, 134], 1),
        ([137, 75, 0], 1), ([2, 2, 2], 2), ([0, 2, 75], 2), ([1, 2, 134], 2), ([3, 3, 3], 3), ([0, 3, 1], 3), ([3, 2, 0], 2),
        ([0, 127, 0], 2), ([126], 2), ([13, 0, 0], 1), ([0, 12, 0], 1), ([175, 75, 75], 1), ([], 1),
    ],
)  # fmt: skip
def test_outcome_of_several_processes(codes, expected):
    assert restarts.outcome(codes) == expected


@pytest.mark.parametrize(
    ("limit", "ends", "again"),
    [
        (2, "1 1 1", "yes yes no"), (2, "1 1 1+ 1 1", "yes yes yes yes no"), (2, "1 1 75 1", "yes yes yes no"),
        (2, "75 75 75 75", "yes yes yes yes"), (2, "1 1 75+ 1", "yes yes yes yes"), (2, "0", "no"), (2, "2+", "no"),
        (2, "3+", "no"), (0, "75", "no"), (0, "1+", "no"),
    ],
)  # fmt: skip
def test_restarts_in_a_row_without_progress_are_limited(limit, ends, again):
    """1+: exit code 1, after something was saved."""
    rule = restarts.Restarts(limit)
    answers = [rule.again(int(end.removesuffix("+")), end.endswith("+")) for end in ends.split()]
    assert ["yes" if answer else "no" for answer in answers] == again.split()


@pytest.mark.parametrize(
    ("states", "verdict"),
    [
        ("0 0", "0"), ("1 1", "1"), ("137 75", "1"), ("2 running", "2"), ("running 3", "3"), ("running running", "wait"),
        ("0 running", "wait"), ("1 running", "wait"), ("running never", "start"), ("running 75", "start"),
        ("other-0 running", "start"), ("75 0", "start"), ("never 1", "start"), ("never never", "start"),
    ],
)  # fmt: skip
def test_all_hosts_of_a_slice_are_judged(states, verdict):
    assert restarts.judge(states.split()) == verdict


SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for SLURM_PROCID in 0 1; do
  export SLURM_PROCID
  "$@"
  code=$?
  ((code <= highest)) || highest=$code
done
exit $highest
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Run a job of two tasks that end with `codes`.

    Return its exit code and whether it was requeued.
    """
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(restarts.signal, "signal", lambda *_: None)

    def run(codes: str, *, squeue="echo RUNNING", scontrol="", run=restarts.slurm, **env: str):
        programs = {
            "srun": SRUN,
            "squeue": f"#!/bin/bash\n{squeue}\n",
            "scontrol": f"#!/bin/bash\n{scontrol}\ntouch requeued\n",
        }
        for name, text in programs.items():
            (tmp_path / "bin" / name).write_text(text)
            (tmp_path / "bin" / name).chmod(0o755)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "requeued").unlink(missing_ok=True)
        ends = codes.replace("+", ' && touch "$T2T_PROGRESS"').split(" / ")
        command = ["bash", "-c", f"[ $SLURM_PROCID = 1 ] || {{ {ends[0]}; }}; {ends[-1]}"]
        return run(command), (tmp_path / "requeued").exists()

    return run


@needs_bash
@pytest.mark.parametrize("codes, code", [("exit 0", 0), ("exit 3", 3), ("exit 127", 2), ("exit 2 / exit 1", 2),
                                         ("exit 2 / kill -9 $PPID", 2), ("exit 3 / kill -9 $$", 3)])  # fmt: skip
def test_final_ends_of_any_task_are_not_requeued(slurm, codes, code, tmp_path):
    assert slurm(codes) == (code, False)
    assert not list(tmp_path.glob(".t2t*"))


@needs_bash
def test_failures_are_requeued_up_to_the_limit(slurm, tmp_path):
    job = lambda codes: slurm(codes, T2T_RESTARTS="02")  # noqa: E731
    assert [job("exit 1") for _ in range(3)] == [(0, True), (0, True), (1, False)]
    assert not list(tmp_path.glob(".t2t*"))
    assert [
        job(end)[1] for end in ("exit 1", "exit 137", "exit 75", 'touch "$T2T_PROGRESS"; exit 1')
    ] == [True] * 4
    assert [job("exit 1")[1] for _ in range(2)] == [True, False]


@needs_bash
def test_saved_stops_are_requeued_however_often(slurm, tmp_path):
    assert slurm("exit 75", SLURM_RESTART_COUNT="20", T2T_RESTARTS="20") == (0, True)
    assert not list(tmp_path.glob(".t2t*"))


@needs_bash
@pytest.mark.parametrize("hiccups, requeued", [(1, True), (99, True)])
def test_slurm_is_asked_again(slurm, hiccups, requeued, tmp_path):
    hiccup = f"echo x >>asked; (( $(wc -l <asked) > {hiccups} )) || exit 1; "
    job = lambda command: restarts.slurm(command, pause=0)  # noqa: E731
    assert slurm("exit 75", squeue=f"{hiccup} echo RUNNING", run=job) == (0, requeued)
    (tmp_path / "asked").unlink()
    assert slurm("exit 75", scontrol=hiccup, run=job) == (
        (0, True) if hiccups == 1 else (75, False)
    )


@needs_bash
def test_job_that_someone_cancelled_or_requeued_is_left_alone(slurm):
    assert slurm("exit 75", squeue="echo CANCELLED") == (75, False)
    assert slurm("exit 1", squeue="true") == (1, False)  # squeue no longer knows it


@needs_bash
def test_job_of_an_array_is_requeued_alone(slurm, tmp_path):
    """The array has the number of its last job; SLURM takes it for all of them."""
    squeue = "echo RUNNING; [[ $* != *7 ]] || echo RUNNING"
    array = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    assert slurm("exit 75", squeue=squeue, scontrol='echo "$@" >requeue', **array) == (0, True)
    assert (tmp_path / "requeue").read_text() == "requeue 7_3\n"


def test_signal_while_a_process_starts_reaches_it_once(monkeypatch):
    """A second one would cut off its saving."""
    sent = []

    class Process:
        pid = 0
        send_signal = sent.append

    class Guard:
        def write(self, text):
            if text.strip():
                children.forward(signal.SIGINT, None)

    monkeypatch.setattr(restarts, "start_guard", Guard)
    monkeypatch.setattr(restarts.signal, "signal", lambda *_: None)
    monkeypatch.setattr(restarts.subprocess, "Popen", lambda *_, **__: Process())
    children = restarts.Children()
    children.start("command", ["true"])
    assert sent == [signal.SIGINT]


@needs_bash
def test_batch_script_calls_it(slurm):
    def run(command):
        return subprocess.run(
            ["bash", LAUNCH / "slurm.sbatch", *command], capture_output=True, timeout=100
        ).returncode

    assert slurm("exit 2 / exit 1", run=run) == (2, False)
    assert slurm("exit 75", run=run, T2T_LAUNCH=str(LAUNCH)) == (0, True)
