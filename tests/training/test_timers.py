"""The age of a process, whatever the wall clock shows, and time by bucket."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from t2t_flax.training.progress import measure, seconds_since_start

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    sys.platform != "linux",
    reason="elsewhere the start is a time of the wall clock, kept by the kernel",
)
def test_age_does_not_depend_on_the_wall_clock(monkeypatch):
    """A clock that is set after the boot moves psutil's start time, by 47 s on one machine."""
    monkeypatch.setattr(time, "time", lambda: pytest.fail("the wall clock is read"))
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: 0.0)
    before = time.monotonic()
    first, second = seconds_since_start(), seconds_since_start()
    assert 0 < first <= second <= first + time.monotonic() - before


def test_age_begins_with_the_process():
    """Not with the import: a second passes before it."""
    script = "import time; time.sleep(1); from t2t_flax.training.progress import seconds_since_start as age; print(age())"
    before = time.monotonic()
    command = [sys.executable, "-c", script]
    age = float(
        subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout
    )
    # The kernel counts hundredths of a second.
    assert 1.0 <= age <= time.monotonic() - before + 0.02


def test_time_is_added_up_by_bucket():
    seconds = {"step": 1.0}
    with measure("step", seconds), measure("data", seconds):
        pass
    assert seconds["step"] > 1.0 and list(seconds) == ["step", "data"]
