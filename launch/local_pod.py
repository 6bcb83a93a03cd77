"""Runs N copies of a command on this machine as if they were N hosts: CPU devices, collectives over the loopback.

Output lines begin with "[process] ". Exit code: 0 all finished; 2 user error, 3 diverged (neither is restarted); 75 stopped
with everything saved; 1 anything else. When one process fails, the others get --grace seconds and are then killed, and all
restart. SIGTERM, SIGINT and SIGHUP go to all processes and end the restarts; the second signal kills.
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
import threading
import time

USER_ERROR, DIVERGED, STOPPED = 2, 3, 75
CANNOT_START = (126, 127)  # a shell's exit codes for a command that it cannot start
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def pod_exit_code(codes: list[int]) -> int:
    """The exit code of a pod whose processes ended with these codes."""
    if codes and not any(codes):
        return 0
    if any(code in (USER_ERROR, *CANNOT_START) for code in codes):
        return USER_ERROR
    if DIVERGED in codes:
        return DIVERGED
    return STOPPED if codes and all(code in (0, STOPPED) for code in codes) else 1


def start_guard():
    """Forks a process that kills the process groups written to the returned file once this launcher is gone, even after
    kill -9. An empty line clears the list.
    """
    reader, writer = os.pipe()
    if os.fork():
        os.close(reader)
        return os.fdopen(writer, "w", buffering=1)
    os.close(writer)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    for descriptor in (0, 1, 2):  # the launcher's output should not stay open because of this process
        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    groups: list[int] = []
    for line in os.fdopen(reader):
        groups = [*groups, int(line)] if line.strip() else []
    for group in groups:
        signal_group(group, signal.SIGKILL)
    os._exit(0)


class Pod:
    """Starts processes, each in a group of its own, and forwards signals to them."""

    def __init__(self, grace: int):
        self.grace, self.signal, self.guard = grace, None, start_guard()
        self.processes: dict[int, subprocess.Popen] = {}
        for number in SIGNALS:
            signal.signal(number, self.forward)

    def forward(self, number: int, frame) -> None:
        say(f"{signal.Signals(number).name} goes to all processes")
        self.send(signal.SIGKILL if self.signal else number)
        self.signal = self.signal or number

    def send(self, number: int) -> None:
        for process in list(self.processes.values()):
            signal_group(process.pid, number)

    def run(self, n: int, command: list[str]) -> list[int]:
        """Runs n processes to their end; returns their exit codes, 128 + number after a signal."""
        codes, printers, deadline, port = [], [], None, free_port()
        pipes = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for i in range(n):
            if self.signal:
                break
            env = os.environ | environment(i, n, port)
            self.processes[i] = process = subprocess.Popen(command, env=env, start_new_session=True, **pipes)
            print(process.pid, file=self.guard)
            for stream, out in ((process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer)):
                printers.append(threading.Thread(target=print_lines, args=(i, stream, out), daemon=True))
                printers[-1].start()
        if self.signal:  # it may have arrived while the last process was starting
            self.send(self.signal)
        while self.processes:
            for i, process in list(self.processes.items()):
                if process.poll() is None:
                    continue
                signal_group(process.pid, signal.SIGKILL)  # children that it left behind
                del self.processes[i]
                codes.append(process.returncode if process.returncode >= 0 else 128 - process.returncode)
                if codes[-1]:
                    say(f"process {i} of {n} ended with exit code {codes[-1]}")
                    grace = min(self.grace, 5) if codes[-1] == USER_ERROR else self.grace
                    deadline = deadline or time.monotonic() + grace
            if self.processes and deadline and time.monotonic() > deadline:
                say(f"killing the remaining processes: {' '.join(map(str, self.processes))}")
                self.send(signal.SIGKILL)
            time.sleep(0.1)
        for printer in printers:
            printer.join(timeout=2)
        print(file=self.guard)
        return codes


def print_lines(i: int, stream, out) -> None:
    """Prints a process's lines with its number, without the connection messages of Gloo."""
    for line in stream:
        if not line.startswith(b"[Gloo] Rank "):
            with contextlib.suppress(OSError):  # the reader of the output has exited
                out.write(b"[%d] %s\n" % (i, line.removesuffix(b"\n")))
                out.flush()


def signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def say(text: str) -> None:
    os.write(2, f"local_pod: {text}\n".encode())  # one write, also in a signal handler


def environment(i: int, n: int, port: int) -> dict[str, str]:
    """The variables by which process i of n joins the others."""
    no_proxy = ",".join(filter(None, [os.environ.get("no_proxy"), "127.0.0.1,localhost"]))
    address = {"T2T_NUM_PROCESSES": str(n), "T2T_PROCESS_ID": str(i), "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}"}
    platform = os.environ.get("JAX_PLATFORMS") or "cpu"
    return address | {"PYTHONUNBUFFERED": "1", "JAX_PLATFORMS": platform, "no_proxy": no_proxy}


def free_port() -> int:
    """A port below those that the kernel assigns to outgoing connections."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The flags, and the command after `--`."""
    usage = "launch/local_pod.sh N [--restarts=R] [--restart-with=M] [--grace=S] [--dry-run] -- COMMAND..."
    parser = argparse.ArgumentParser(prog="local_pod", usage=usage, description=__doc__, allow_abbrev=False)
    numbers = {"N": 1, "--restarts": 0, "--restart-with": 1, "--grace": 0}
    for name, default in zip(numbers, (None, 0, None, 30), strict=True):
        parser.add_argument(name, type=int, default=default)
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
    n, attempt, port = args.N, 0, free_port()
    if args.dry_run:
        for i in range(n):
            print(shlex.join(["env", *(f"{k}={v}" for k, v in environment(i, n, port).items()), *command]))
        return 0
    pod = Pod(args.grace)
    while True:
        code = pod_exit_code(pod.run(n, command))
        if code in (0, USER_ERROR, DIVERGED) or pod.signal or attempt == args.restarts:
            return code
        attempt, n = attempt + 1, args.restart_with or n
        say(f"restart {attempt} of {args.restarts}, with {n} processes")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
