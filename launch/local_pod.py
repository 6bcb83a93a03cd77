"""Run N copies of a command on this machine as if they were N hosts.

Each has CPU devices; collectives use the loopback. Output lines begin with "[process] ". Exit code:
0 all finished; 2 user error, 3 diverged (neither is restarted); 75 stopped with everything saved; 1
anything else. When one process fails, the others get --grace seconds and are then killed, and all
restart. SIGTERM, SIGINT and SIGHUP go to all processes and end the restarts; the second of a kind
kills.
"""

import argparse
import contextlib
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from restarts import (
    PROGRESS,
    USER_ERROR,
    Children,
    Restarts,
    outcome,
    say,
    signal_group,
    take,
    whole_number,
)


class Pod(Children):
    """N processes of a command."""

    def __init__(self, grace: int):
        super().__init__()
        self.grace = grace
        self._came: set[int] = set()

    def forward(self, number: int, frame) -> None:
        say("local_pod", f"{signal.Signals(number).name} goes to all processes")
        super().forward(signal.SIGKILL if number in self._came else number, frame)
        self._came.add(number)

    def send(self, number: int) -> None:
        for process in list(self.running.values()):
            signal_group(process.pid, number)

    def run(self, n: int, command: list[str], saved: Path) -> list[int]:
        """Run n processes to their end and return their exit codes, 128 + number after a signal.

        Args:
          saved: file that a process creates as `PROGRESS` describes.
        """
        codes, printers, deadline, port = [], [], None, free_port()
        pipes = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for i in range(n):
            if self.signal:
                break
            env = os.environ | environment(i, n, port) | {PROGRESS: str(saved)}
            process = self.start(i, command, env=env, **pipes)
            for stream, out in (
                (process.stdout, sys.stdout.buffer),
                (process.stderr, sys.stderr.buffer),
            ):
                printers.append(
                    threading.Thread(target=print_lines, args=(i, stream, out), daemon=True)
                )
                printers[-1].start()
        while self.running:
            for i, process in list(self.running.items()):
                if process.poll() is None:
                    continue
                codes.append(self.end(i))
                if codes[-1]:
                    say("local_pod", f"process {i} of {n} ended with exit code {codes[-1]}")
                    grace = min(self.grace, 5) if codes[-1] == USER_ERROR else self.grace
                    deadline = deadline or time.monotonic() + grace
            if self.running and deadline and time.monotonic() > deadline:
                say(
                    "local_pod",
                    f"killing the remaining processes: {' '.join(map(str, self.running))}",
                )
                self.send(signal.SIGKILL)
            time.sleep(0.1)
        for printer in printers:
            printer.join(timeout=2)
        return codes


def print_lines(i: int, stream, out) -> None:
    """Print a process's lines with its number, without the connection messages of Gloo."""
    for line in stream:
        if not line.startswith(b"[Gloo] Rank "):
            with contextlib.suppress(OSError):  # the reader of the output has exited
                out.write(b"[%d] %s\n" % (i, line.removesuffix(b"\n")))
                out.flush()


def environment(i: int, n: int, port: int) -> dict[str, str]:
    """Return the environment variables with which process i of n joins the others."""
    no_proxy = ",".join(filter(None, [os.environ.get("no_proxy"), "127.0.0.1,localhost"]))
    address = {
        "T2T_NUM_PROCESSES": str(n),
        "T2T_PROCESS_ID": str(i),
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
    }
    platform = os.environ.get("JAX_PLATFORMS") or "cpu"
    return address | {"PYTHONUNBUFFERED": "1", "JAX_PLATFORMS": platform, "no_proxy": no_proxy}


def free_port() -> int:
    """Return a port below the ones that the kernel assigns to outgoing connections."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the flags, and the command after `--`."""
    usage = (
        "launch/local_pod.sh N [--restarts=R] [--restart-with=M] [--grace=S] [--dry-run] --"
        " COMMAND..."
    )
    parser = argparse.ArgumentParser(
        prog="local_pod", usage=usage, description=__doc__, allow_abbrev=False
    )
    numbers = {"N": 1, "--restarts": 0, "--restart-with": 1, "--grace": 0}
    for name, default in zip(numbers, (None, 0, None, 30), strict=True):
        parser.add_argument(name, type=whole_number, default=default)
    parser.add_argument("--dry-run", action="store_true")
    end = argv.index("--") if "--" in argv else len(argv)
    args, command = parser.parse_args(argv[:end]), argv[end + 1 :]
    for name, least in numbers.items():
        value = getattr(args, name.strip("-").replace("-", "_"))
        if value is not None and value < least:
            parser.error(f"{name} is {value}, expected {least} or more")
    if not command or not shutil.which(command[0]):
        parser.error(f"there is no command {' '.join(command[:1])!r}; it follows --")
    return args, command


def main(argv: list[str]) -> int:
    args, command = parse(argv)
    n, restarts = args.N, Restarts(args.restarts)
    if args.dry_run:
        port = free_port()
        for i in range(n):
            print(
                shlex.join(
                    ["env", *(f"{k}={v}" for k, v in environment(i, n, port).items()), *command]
                )
            )
        return 0
    pod = Pod(args.grace)
    with tempfile.TemporaryDirectory(prefix="t2t_restarts.") as folder:
        saved = Path(folder, "saved")
        while True:
            try:
                code = outcome(pod.run(n, command, saved))
            except OSError as error:  # such as a script without its first line
                say("local_pod", f"the command cannot be started: {error}")
                return USER_ERROR
            message = "" if pod.signal else restarts.again(code, take(saved))
            if not message:
                return code
            n = args.restart_with or n
            say("local_pod", f"{message}, with {n} processes")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
