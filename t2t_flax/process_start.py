"""When processes started, by a clock that nobody sets.

The start that psutil gives on Linux is a time of the wall clock, counted from the boot: it moves when that clock is set.
"""

import os
import time
from pathlib import Path

import psutil

_LINUX = Path("/proc/self/stat").exists()


def start_of(process: int) -> float | None:
    """Seconds from the boot (elsewhere than on Linux: from the epoch) to the start of a process. The same whenever it is asked
    for, and another one for a later process of the same number. None if no such process is seen.
    """
    try:
        if not _LINUX:
            return psutil.Process(process).create_time()
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()  # the name may hold spaces
        return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (psutil.Error, OSError):
        return None


def seconds_since_start() -> float:
    """The age of this process."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME) if _LINUX else time.time()
    return now - (start_of(os.getpid()) or now)


def machine() -> str:
    """Identifies what process numbers belong to: on Linux this boot and this container, elsewhere nothing ("")."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""
