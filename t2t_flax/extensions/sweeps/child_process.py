"""Runner of a command on some CPU cores.

It sends the command SIGTERM when the process that started it dies.

    python child_process.py PARENT_PID CORES COMMAND...        CORES: 0,1 or - for all

Runs before the command's own Python, so it imports nothing of the package.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # prctl(2)

if __name__ == "__main__":
    parent, cores, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if cores != "-":
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before prctl took effect
        sys.exit(75)
    os.execv(command[0], command)
