"""Heartbeats and hangs, with threads as the processes of a run."""

from types import SimpleNamespace

import pytest
from helpers.supervised_threads import supervisors
from helpers.thread_groups import thread_groups, wait_until

from t2t_flax.config import Config
from t2t_flax.distributed import supervisor
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.supervisor import RunSupervisor
from t2t_flax.extensions.resilience import Resilience, watcher
from t2t_flax.extensions.resilience.watcher import Heartbeats

NEVER = Config(extensions=(("resilience", Resilience(hang_timeout=0)),))


@pytest.mark.smoke
def test_lead_reports_a_dead_process_and_exits(exits, capsys):
    with supervisors(2, NEVER, heartbeat_timeout=1) as (_, runs):
        wait_until(lambda: 1 in runs[0].watchers[0].heartbeats._peers)
        runs[1]._closed.set()  # it sends no more heartbeats
        wait_until(lambda: 1 in exits)
    assert "process 1 on" in (err := capsys.readouterr().err) and "silent for 1 s" in err and "Thread 0x" in err


def test_failure_of_one_process_ends_the_others_with_its_code(exits, capsys):
    with supervisors(3) as (_, runs):
        runs[1].watchers[0].failed(2, "no such file", disconnected=False)
        wait_until(lambda: len(exits) == 2)
    assert exits == [2, 2] and capsys.readouterr().err.count("failed: no such file") == 2


def test_process_that_dies_within_its_first_second_is_reported(exits, capsys, monkeypatch):
    for name in ("_communicate", "_supervise"):
        thread = getattr(RunSupervisor, name)
        monkeypatch.setattr(RunSupervisor, name, lambda run, thread=thread: run.group.is_lead and thread(run))
    with supervisors(2, NEVER, heartbeat_timeout=1):
        wait_until(lambda: 1 in exits)
    assert "process 1 on" in (err := capsys.readouterr().err) and "silent for 1 s" in err


def test_silent_coordinator_ends_the_other_processes(exits, capsys):
    with supervisors(2, NEVER, heartbeat_timeout=1) as (service, _):
        service.available = False
        wait_until(lambda: 1 in exits)
    err = capsys.readouterr().err
    assert "process 0 on" in err and "the coordinator, silent for" in err


def test_hanging_process_exits_with_stacks_in_the_workdir(exits, tmp_path, capsys):
    config = Config(extensions=(("resilience", Resilience(hang_timeout=1)),))
    with RunSupervisor(ProcessGroup(), config, stacks=tmp_path) as run, run.expect_progress():
        watcher = run.watchers[0]
        with run.expect_progress(False):
            watcher._seen_at -= 100
            assert watcher.quiet_seconds() == 0
            watcher.check()  # time in which no progress was expected does not count
        watcher.check()
        watcher._seen_at -= 100
        wait_until(lambda: exits)
    assert "hang_timeout = 1" in capsys.readouterr().err
    assert "test_watcher.py" in (tmp_path / "process-0.txt").read_text()


def test_late_processes_are_reported(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=lambda: now[0]))
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
    now[0] += 3 * supervisor.INTERVAL
    assert exchange(6, 6, None).startswith("Late: process 2 on") and beats[0].silent_processes(supervisor.INTERVAL) == [
        2
    ]
    assert Heartbeats(ProcessGroup()).describe_late(1) == "There is one process."
