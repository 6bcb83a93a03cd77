"""Time of a run by named buckets, and since the start of the process."""

import contextlib
import os
import time
from pathlib import Path

import psutil


def seconds_since_start() -> float:
    """The age of this process. On Linux from numbers that count from the boot: psutil adds the time of the boot, which moves
    when the wall clock is set.
    """
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return time.time() - psutil.Process().create_time()
    start = stat.read_text().rpartition(")")[2].split()[19]  # field 22 of proc(5); the name may contain spaces
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(start) / os.sysconf("SC_CLK_TCK")


class Clock:
    """Seconds by bucket (compile, data, step, eval, save); carried over restarts through `seconds`."""

    def __init__(self, seconds: dict[str, float] | None = None):
        self.seconds = dict(seconds or {})

    @contextlib.contextmanager
    def measure(self, bucket: str):
        """Adds the block's time to `bucket`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(bucket, time.perf_counter() - start)

    def add(self, bucket: str, seconds: float) -> None:
        self.seconds[bucket] = self.seconds.get(bucket, 0.0) + seconds

    def rounded(self) -> dict[str, float]:
        return {name: round(value, 3) for name, value in self.seconds.items()}
