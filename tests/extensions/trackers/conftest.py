import sys
import threading
from pathlib import Path

import pytest

from t2t_flax.extensions.trackers import clients, hook

sys.path.insert(0, str(Path(__file__).parent))
from tracked_runs import Memory  # noqa: E402


@pytest.fixture(autouse=True)
def no_thread_stays():
    """A thread that a test left behind would log into the next one."""
    before = threading.enumerate()
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("tracker-") and thread not in before:
            thread.join(60)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """With clients on a slow machine."""
    monkeypatch.setattr(hook, "CLOSE_SECONDS", 200.0)
    monkeypatch.setattr(clients, "FINISH_SECONDS", 200.0)


@pytest.fixture
def memory(monkeypatch):
    server = Memory()
    monkeypatch.setitem(hook.CLIENTS, "wandb", server.open)
    return server
