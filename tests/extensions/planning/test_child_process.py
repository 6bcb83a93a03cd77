"""The process that compiles: its exit code, and signals that are passed on to it."""

import os
import signal
import threading
import time

import pytest

from t2t_flax.errors import STOPPED
from t2t_flax.extensions.planning import compiler_process

CHILD = """
import os, signal, sys, time
def stop(number, frame):
    open(sys.argv[1] + ".stopped", "w").close()
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
if sys.argv[2:]:
    sys.exit(int(sys.argv[2]))
time.sleep(60)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A stand-in for this package in a child process: waits for a signal, or exits with the given code."""
    (tmp_path / "t2t_flax").mkdir()
    (tmp_path / "t2t_flax" / "__init__.py").touch()
    (tmp_path / "t2t_flax" / "__main__.py").write_text(CHILD)
    monkeypatch.setattr(compiler_process, "child_environment", lambda: os.environ | {"PYTHONPATH": str(tmp_path)})
    monkeypatch.chdir(tmp_path)  # where `python -m` looks first


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_is_passed_on_to_the_child(package, tmp_path, number):
    pid = tmp_path / "pid"

    def send_signal():
        while signal.getsignal(number) == before or not (pid.exists() and pid.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    sender = threading.Thread(target=send_signal, daemon=True)
    sender.start()
    assert compiler_process.run_in_child(str(pid)) == STOPPED
    sender.join(10)
    assert (tmp_path / "pid.stopped").exists() and signal.getsignal(number) == before
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize("code", [0, 2])
def test_exit_code_of_the_child_is_returned(package, tmp_path, code):
    assert compiler_process.run_in_child(str(tmp_path / "pid"), str(code)) == code
