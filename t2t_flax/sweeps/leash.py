"""Becomes the command it is given, on some cores, and asked to stop when the process that started it ends.

    python leash.py PARENT_PID CORES COMMAND...        CORES: 0,1 or - for all

A file of its own that imports nothing of the package: it runs before the command's own Python.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, cores, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if cores != "-":
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the line above
        sys.exit(75)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
