"""Stopping together, heartbeats and the hang watchdog, with threads as the processes of a run."""

import contextlib
import random
import signal
import time
from types import SimpleNamespace

import pytest
from helpers.thread_groups import run_threads, thread_groups, wait_until

from t2t_flax.config import Distributed
from t2t_flax.distributed import heartbeats, supervisor
from t2t_flax.distributed.coordination import ProcessGroup, ProcessGroupError
from t2t_flax.distributed.heartbeats import Heartbeats
from t2t_flax.distributed.preemption import Preemption
from t2t_flax.distributed.supervisor import RunSupervisor


class Exit(BaseException):
    """The end of a process that is a thread."""


@pytest.fixture
def exits(monkeypatch):
    """Exit codes with which supervisors ended their processes; heartbeats every hundredth of a second."""
    codes = []

    def end(code):
        codes.append(code)
        raise Exit

    monkeypatch.setattr(supervisor, "end", end)
    monkeypatch.setattr(heartbeats, "INTERVAL", 0.01)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    return codes


@contextlib.contextmanager
def supervisors(count, exits, **keys):
    service, groups = thread_groups(count)
    with contextlib.ExitStack() as stack:
        yield service, [stack.enter_context(RunSupervisor(group, Distributed(**keys))) for group in groups]


def stopped_at(run: RunSupervisor, seed: int) -> int:
    """The first call of `should_stop` that is True; calls come at random times."""
    rng = random.Random(seed)
    while not run.should_stop():
        time.sleep(rng.uniform(0, 0.004))
    return run.preemption.calls


@pytest.mark.parametrize("signalled", [0, 2])
def test_signal_to_one_process_stops_all_at_the_same_call(exits, signalled):
    with supervisors(3, exits, hang_timeout=0) as (_, runs):

        def work(index, run):
            if index == signalled:
                for _ in range(5):
                    run.should_stop()
                run.preemption.request("SIGTERM")
            return stopped_at(run, index)

        calls = run_threads(work, list(enumerate(runs)))
        assert len(set(calls)) == 1 and calls[0] >= 6
        assert [run.signal for run in runs] == ["SIGTERM"] * 3
        assert all(run.should_stop() for run in runs)  # also at every later call


def test_signals_to_two_processes_stop_at_the_later_proposal():
    _, groups = thread_groups(2)
    ahead, behind = (Preemption(group, 5.0) for group in groups)
    for _ in range(7):
        assert not ahead.should_stop()
    for preemption, name in ((ahead, "SIGTERM"), (behind, "SIGINT")):
        preemption.request(name)
        preemption.request("SIGHUP")  # the first one counts
        preemption.publish()
    assert ahead.should_stop() and ahead.calls == 8
    assert [behind.should_stop() for _ in range(8)] == [False] * 7 + [True]
    assert behind.signal == "SIGINT"


def test_missing_proposal_is_an_error_after_the_timeout():
    _, groups = thread_groups(2)
    preemption = Preemption(groups[0], 0.05)
    preemption.request("SIGTERM")
    preemption.publish()
    with pytest.raises(ProcessGroupError, match="DEADLINE_EXCEEDED"):
        preemption.should_stop()


def test_signal_of_a_single_process_stops_at_the_next_call():
    with RunSupervisor(ProcessGroup(), Distributed()) as run:
        assert not run.should_stop()
        signal.raise_signal(signal.SIGTERM)
        wait_until(lambda: run.signal)
        assert run.should_stop() and run.signal == "SIGTERM"


def test_signal_while_compiling_exits_with_75(exits, capsys):
    with RunSupervisor(ProcessGroup(), Distributed()) as run:
        with run.exit_on_signal("compiling"):
            with run.exit_on_signal("the rest"):
                pass
            run.preemption.request("SIGTERM")
            wait_until(lambda: exits)
    assert exits == [75] and "SIGTERM while compiling: exiting" in capsys.readouterr().err


def test_failure_of_one_process_ends_the_others_with_its_code(exits, capsys):
    with supervisors(3, exits) as (_, runs):
        runs[1].broadcast_failure(2, "no such file")
        wait_until(lambda: len(exits) == 2)
    assert exits == [2, 2] and capsys.readouterr().err.count("failed: no such file") == 2


def test_lead_reports_a_dead_process_and_exits(exits, capsys):
    with supervisors(2, exits, heartbeat_timeout=1, hang_timeout=0) as (_, runs):
        wait_until(lambda: 1 in runs[0]._heartbeats._peers)
        runs[1]._closed.set()  # it sends no more heartbeats
        wait_until(lambda: 1 in exits)
    assert "process 1 on" in (err := capsys.readouterr().err) and "silent for 1 s" in err and "Thread 0x" in err


def test_process_that_dies_within_its_first_second_is_reported(exits, capsys, monkeypatch):
    for name in ("_communicate", "_supervise"):
        thread = getattr(RunSupervisor, name)
        monkeypatch.setattr(RunSupervisor, name, lambda run, thread=thread: run.group.is_lead and thread(run))
    with supervisors(2, exits, heartbeat_timeout=1, hang_timeout=0):
        wait_until(lambda: 1 in exits)
    assert "process 1 on" in (err := capsys.readouterr().err) and "silent for 1 s" in err


def test_silent_coordinator_ends_the_other_processes(exits, capsys):
    with supervisors(2, exits, heartbeat_timeout=1, hang_timeout=0) as (service, _):
        service.available = False
        wait_until(lambda: 1 in exits)
    err = capsys.readouterr().err
    assert "process 0 on" in err and "the coordinator, silent for" in err


def test_hanging_process_exits_with_stacks_in_the_workdir(exits, tmp_path, capsys):
    with RunSupervisor(ProcessGroup(), Distributed(hang_timeout=1), stacks=tmp_path) as run, run.expect_progress():
        with run.suspend_hang_timeout():
            run.watchdog._alive_at -= 100
            assert not run.watchdog.is_hanging()
        run._exit_if_hanging()  # suspended time does not count
        run.watchdog._alive_at -= 100
        wait_until(lambda: exits)
    assert "hang_timeout = 1" in capsys.readouterr().err
    assert "test_supervisor.py" in (tmp_path / "process-0.txt").read_text()


def test_late_processes_are_reported(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(heartbeats, "time", SimpleNamespace(monotonic=lambda: now[0]))
    _, groups = thread_groups(3)
    beats = [Heartbeats(group) for group in groups]

    def exchange(*calls):
        for beat, count in zip(beats, calls, strict=True):
            if count is not None:
                beat.send(count)
        beats[0].receive()
        return beats[0].describe_late(calls[0])

    assert exchange(4, 4, 4) == "No process is behind another: all wait in the same place."
    assert exchange(6, 5, 6).startswith("Late: process 1 on")
    now[0] += 3 * heartbeats.INTERVAL
    assert exchange(6, 6, None).startswith("Late: process 2 on") and beats[0].silent_processes(heartbeats.INTERVAL) == [
        2
    ]
    assert Heartbeats(ProcessGroup()).describe_late(1) == "There is one process."


def test_values_are_gathered_and_broadcast():
    _, groups = thread_groups(3)

    def work(group):
        gathered = group.all_gather("names", f"n{group.index}")
        return gathered, group.broadcast("choice", f"c{group.index}"), group.name_of(2)

    results = run_threads(work, [(group,) for group in groups])
    assert results[0] == results[1] == results[2]
    gathered, choice, name = results[0]
    assert (gathered, choice) == (["n0", "n1", "n2"], "c0") and name.startswith("process 2 on ")
