"""Windows laid out ahead: the same as those laid out when they are needed, in processes that end."""

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys

import pytest
from helpers.processes import is_alive, wait_for
from helpers.refusals import refused

from t2t_flax.errors import UserError
from t2t_flax.extensions.layout_processes import ahead as ahead_module
from t2t_flax.extensions.layout_processes.ahead import AheadInProcesses


@dataclasses.dataclass
class Window:
    number: int
    process: int
    niceness: int
    updates: int = 4


@dataclasses.dataclass(frozen=True)
class Layouter:
    """Windows of numbers; `failing`: of which one raises, `killed`: of which one ends its process."""

    failing: int = -1
    killed: int = -1

    def lay_out(self, window):
        if window == self.failing:
            raise UserError(f"window {window} has a pair that is too long")
        if window == self.killed and multiprocessing.parent_process():
            os.kill(os.getpid(), signal.SIGKILL)
        return Window(window, os.getpid(), os.nice(0))


@pytest.fixture
def slow(monkeypatch):
    """As if each window took long."""
    monkeypatch.setattr(ahead_module, "INLINE_SECONDS", -1.0)


def wait_until_laid_out(ahead):
    """Until the windows in flight have been laid out."""
    wait_for(lambda: all(call.done() for _, call in ahead._pending), "windows are laid out")


def test_windows_after_the_first_come_from_other_processes(slow):
    layouter, ahead = Layouter(), AheadInProcesses()
    with ahead.in_processes(2):
        processes = []
        for number in [*range(7), 7, 3, 4, 5, 20, 21]:
            window = ahead.window(layouter, number)
            assert window.number == number
            processes.append(window.process == os.getpid())
            assert (window.niceness == os.nice(0)) == processes[-1], "training comes first"
            wait_until_laid_out(ahead)
    assert processes[:8] == [True, *[False] * 7]
    assert processes[8:] == [True, False, False, True, False], "after a jump the first is laid out here"
    assert ahead.window(layouter, 22).process == os.getpid()


def test_another_layouter_gets_processes_of_its_own(slow):
    first, second, ahead = Layouter(), Layouter(failing=2), AheadInProcesses()
    with ahead.in_processes(1):
        for layouter, number in [(first, 0), (first, 1), (second, 0), (second, 1)]:
            assert ahead.window(layouter, number).number == number
            wait_until_laid_out(ahead)
        with refused("window 2"):
            ahead.window(second, 2)


def test_a_killed_process_is_an_error(slow):
    layouter, ahead = Layouter(killed=2), AheadInProcesses()
    with ahead.in_processes(1), refused("data.num_workers"):
        for number in range(3):
            ahead.window(layouter, number)
            wait_until_laid_out(ahead)


@pytest.mark.smoke
def test_small_windows_start_no_process(monkeypatch):
    monkeypatch.setattr(ahead_module, "Workers", None)
    ahead = AheadInProcesses()
    with ahead.in_processes(8):
        assert {ahead.window(Layouter(), number).process for number in range(5)} == {os.getpid()}


def test_without_processes_windows_are_laid_out_here(slow, monkeypatch):
    monkeypatch.setattr(ahead_module, "Workers", None)
    ahead = AheadInProcesses()
    with ahead.in_processes(0):
        assert {ahead.window(Layouter(), number).process for number in range(5)} == {os.getpid()}


KILLED = """
import multiprocessing, time
from test_ahead import Layouter
from t2t_flax.extensions.layout_processes import ahead as ahead_module

if __name__ == "__main__":
    ahead_module.INLINE_SECONDS = -1.0
    ahead, layouter = ahead_module.AheadInProcesses(), Layouter()
    with ahead.in_processes(2):
        for number in range(3):
            ahead.window(layouter, number)
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        time.sleep({seconds})
"""


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_no_process_outlives_a_stopped_trainer(tmp_path, stop):
    (tmp_path / "run.py").write_text(KILLED.format(seconds=600))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "run.py")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert 1 <= len(workers) <= 2
    if stop == signal.SIGKILL:
        os.kill(process.pid, stop)
    else:  # as a terminal or a host that shuts down sends it: to all of them
        os.killpg(process.pid, stop)
    process.communicate(timeout=120)
    wait_for(lambda: not any(map(is_alive, workers)), "the workers end")
