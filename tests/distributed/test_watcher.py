"""Heartbeats and hangs, with threads as the processes of a run."""

from types import SimpleNamespace

import pytest
from helpers.refusals import assert_names
from helpers.supervised_threads import Exit, supervisors
from helpers.thread_groups import thread_groups, wait_until

from t2t_flax.config import Config, Distributed
from t2t_flax.distributed import watcher
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.supervisor import RunSupervisor
from t2t_flax.distributed.watcher import Heartbeats

SHORT = dict(hang_timeout=0, heartbeat_timeout=1)


@pytest.mark.smoke
def test_lead_reports_a_dead_process_and_exits(exits, capfd):
    with supervisors(2, **SHORT) as (_, runs):
        wait_until(lambda: 1 in runs[0].watcher.heartbeats._peers)
        runs[1]._closed.set()  # it sends no more heartbeats
        wait_until(lambda: 1 in exits)
    assert_names(capfd.readouterr().err, "process 1", "heartbeat_timeout", "Thread 0x")


def test_failure_of_one_process_ends_the_others_with_its_code(exits, capsys):
    with supervisors(3) as (_, runs):
        runs[1].watcher.failed(2, "no-such-file", disconnected=False)
        wait_until(lambda: len(exits) == 2)
    assert exits == [2, 2] and capsys.readouterr().err.count("no-such-file") == 2


def test_process_that_dies_within_its_first_second_is_reported(exits, capsys, monkeypatch):
    for name in ("_communicate", "_supervise"):
        thread = getattr(RunSupervisor, name)
        monkeypatch.setattr(
            RunSupervisor, name, lambda run, thread=thread: run.group.is_lead and thread(run)
        )
    with supervisors(2, **SHORT):
        wait_until(lambda: 1 in exits)
    assert_names(capsys.readouterr().err, "process 1", "heartbeat_timeout")


def test_silent_coordinator_ends_the_other_processes(exits, capsys):
    with supervisors(2, **SHORT) as (service, _):
        service.available = False
        wait_until(lambda: 1 in exits)
    assert_names(capsys.readouterr().err, "process 0", "coordinator", "heartbeat_timeout")


def test_hanging_process_exits_with_stacks(exits, capfd):
    config = Config(distributed=Distributed(hang_timeout=1))
    with RunSupervisor(ProcessGroup(), config) as run, run.expect_progress():
        watching = run.watcher
        with run.expect_progress(False):
            watching._seen_at -= 100
            assert watching.quiet_seconds() == 0
            watching.check()  # time in which no progress was expected does not count
        watching.check()
        watching._seen_at -= 100
        wait_until(lambda: exits)
    assert_names(capfd.readouterr().err, "hang_timeout", "test_watcher.py")


def test_suspended_process_does_not_count_as_hanging_or_silent(exits, monkeypatch):
    """The supervisor's thread stands still too while the process is suspended.

    Here time passes between its checks.
    """
    now = [100.0]
    monkeypatch.setattr(
        watcher, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: None)
    )
    service, groups = thread_groups(2)
    lead, other = (
        RunSupervisor(group, Config(distributed=Distributed(hang_timeout=5, heartbeat_timeout=5)))
        for group in groups
    )
    with lead.expect_progress(), other.expect_progress():
        for run in (other, lead):
            run.watcher.check()
            run.watcher.communicate({})
        now[0] += 100
        for run in (lead, other):
            run.watcher.communicate({})
            run.watcher.check()
        assert not exits
        service.available = False
        with pytest.raises(Exit):
            for _ in range(round(6 / watcher.INTERVAL)):
                now[0] += watcher.INTERVAL
                other.watcher.check()


def test_late_processes_are_named():
    now = [100.0]
    _, groups = thread_groups(3)
    beats = [Heartbeats(group, lambda: now[0]) for group in groups]

    def exchange(*calls):
        for beat, count in zip(beats, calls, strict=True):
            if count is not None:
                beat.send(count)
        beats[0].receive()
        late = beats[0].late_processes(calls[0])
        return [i for i in range(3) if f"process {i} on" in late]

    assert exchange(4, 4, 4) == []
    assert exchange(6, 5, 6) == [1]
    now[0] += 3 * watcher.INTERVAL
    assert exchange(6, 6, None) == [2] and beats[0].silent_processes(watcher.INTERVAL) == [2]
    assert not Heartbeats(ProcessGroup(), lambda: now[0]).late_processes(1)
