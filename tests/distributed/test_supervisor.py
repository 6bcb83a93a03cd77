"""Stopping together, with threads as the processes of a run."""

import errno
import fcntl
import os
import pty
import random
import signal
import subprocess
import sys
import termios
import time
from types import SimpleNamespace

import pytest
from helpers.processes import environment
from helpers.refusals import assert_names, refused
from helpers.supervised_threads import supervisors
from helpers.thread_groups import run_threads, thread_groups, wait_until

from t2t_flax.config import Config, Distributed
from t2t_flax.distributed import supervisor as supervision
from t2t_flax.distributed.coordination import ProcessGroup, ProcessGroupError
from t2t_flax.distributed.supervisor import RunSupervisor


def stopped_at(run: RunSupervisor, seed: int) -> int:
    """The first call of `should_stop` that is True; calls come at random times."""
    rng = random.Random(seed)
    while not run.should_stop():
        time.sleep(rng.uniform(0, 0.004))
    return run.stop_checks


@pytest.mark.parametrize("signalled", [0, 2])
def test_signal_to_one_process_stops_all_at_the_same_call(exits, signalled):
    with supervisors(3) as (_, runs):

        def work(index, run):
            if index == signalled:
                for _ in range(5):
                    run.should_stop()
                run.request_stop("SIGTERM")
            return stopped_at(run, index)

        calls = run_threads(work, list(enumerate(runs)))
        assert len(set(calls)) == 1 and calls[0] >= 6
        assert [run.signal for run in runs] == ["SIGTERM"] * 3
        assert all(run.should_stop() for run in runs)  # also at every later call


def test_signals_to_two_processes_stop_at_the_later_proposal():
    _, groups = thread_groups(2)
    ahead, behind = (RunSupervisor(group, Config()) for group in groups)
    for _ in range(7):
        assert not ahead.should_stop()
    for run, name in ((ahead, "SIGTERM"), (behind, "SIGINT")):
        run.request_stop(name)
        run.request_stop("SIGHUP")  # the first one counts
        run.publish()
    assert ahead.should_stop() and ahead.stop_checks == 8
    assert [behind.should_stop() for _ in range(8)] == [False] * 7 + [True]
    assert behind.signal == "SIGINT"


def test_missing_proposal_is_an_error_after_the_timeout():
    _, groups = thread_groups(2)
    run = RunSupervisor(groups[0], Config(distributed=Distributed(heartbeat_timeout=0)))
    run.request_stop("SIGTERM")
    run.publish()
    with refused("DEADLINE_EXCEEDED", error=ProcessGroupError):
        run.should_stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_of_a_single_process_stops_at_the_next_call(number):
    before = signal.getsignal(number)
    with RunSupervisor(ProcessGroup(), Config()) as run:
        assert not run.should_stop()
        signal.raise_signal(number)
        wait_until(lambda: run.signal)
        assert run.should_stop() and run.signal == number.name
    assert signal.getsignal(number) == before


def test_hangup_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with RunSupervisor(ProcessGroup(), Config()):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


WAITS_FOR_A_SIGNAL = """
import os, time
from t2t_flax.distributed.signals import on_stop_signals
came = []
with on_stop_signals(came.append):
    print("ready", flush=True)
    while not came:
        time.sleep(0.01)
    print("saved", flush=True)
    os._exit(75)
"""


def test_command_whose_terminal_is_closed_can_still_write_and_save():
    terminal, its_end = pty.openpty()
    claim = lambda: fcntl.ioctl(its_end, termios.TIOCSCTTY, 0)  # noqa: E731
    options = dict(
        stdin=its_end, stdout=its_end, stderr=its_end, start_new_session=True, preexec_fn=claim
    )
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS_FOR_A_SIGNAL], env=environment(), **options
    )
    os.close(its_end)
    assert b"ready" in os.read(terminal, 1000)
    os.close(terminal)  # the kernel sends SIGHUP, and refuses all further output
    assert process.wait(100) == 75


def test_command_whose_reader_has_gone_can_still_write_and_save():
    """Ctrl-C goes to all programs of a pipe, as in `train ... | tee log`."""
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS_FOR_A_SIGNAL], env=environment(), **pipes
    )
    assert b"ready" in process.stdout.readline()
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(100) == 75


@pytest.mark.parametrize("call", ["end(75, 'why')", "supervise()"])
def test_process_ends_where_nobody_reads_its_output(call):
    """Also in the supervisor's thread, whose death would leave a process that no signal stops."""
    program = f"""
import sys, time
from t2t_flax.config import Config
from t2t_flax.distributed.coordination import ProcessGroup, end
from t2t_flax.distributed.supervisor import RunSupervisor
def supervise():
    with RunSupervisor(ProcessGroup(), Config()) as run, run.exit_on_signal("compiling"):
        run.request_stop("SIGTERM")
        time.sleep(1000)
sys.stdin.read()
{call}
"""
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    process = subprocess.Popen([sys.executable, "-c", program], env=environment(), **pipes)
    process.stdout.close()
    process.stdin.close()
    assert process.wait(100) == 75


def test_signal_while_compiling_exits_with_75(exits, capsys):
    with RunSupervisor(ProcessGroup(), Config()) as run:
        with run.exit_on_signal("compiling"):
            with run.exit_on_signal("the rest"):
                pass
            run.request_stop("SIGTERM")
            wait_until(lambda: exits)
    assert exits == [75]
    assert_names(capsys.readouterr().err, "SIGTERM", "compiling")


def test_values_are_gathered_and_broadcast():
    _, groups = thread_groups(3)

    def work(group):
        gathered = group.all_gather("names", f"n{group.index}")
        return gathered, group.broadcast("choice", f"c{group.index}"), group.name_of(2)

    results = run_threads(work, [(group,) for group in groups])
    assert results[0] == results[1] == results[2]
    gathered, choice, name = results[0]
    assert (gathered, choice) == (["n0", "n1", "n2"], "c0") and name.startswith("process 2 on ")


@pytest.mark.parametrize("number, code", [(errno.ENOSPC, 2), (errno.EIO, 1)])
def test_only_full_disk_is_a_user_error(number, code, monkeypatch):
    """A launcher restarts all processes after a failure; disk space must be freed by the user."""
    messages, broadcasts = [], []
    watcher = SimpleNamespace(
        failed=lambda *message, disconnected: broadcasts.append(message) or []
    )
    supervisor = SimpleNamespace(say=messages.append, watcher=watcher, signal=None)

    def end(code):
        raise SystemExit(code)

    monkeypatch.setattr(supervision, "end", end)
    with pytest.raises(SystemExit) as ended:
        supervision._fail(supervisor, OSError(number, "what it says", "/runs/metrics.jsonl"))
    assert ended.value.code == code and broadcasts == [(code, messages[0])]
    assert "/runs/metrics.jsonl" in messages[0]
