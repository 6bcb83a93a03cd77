"""Run a command and decide whether it starts again: exit codes, progress, number of restarts.

    restarts.py retry [--restarts=R] [--delay=S] [--exit-file=FILE] -- COMMAND...
        one host: launch/retry.sh
    restarts.py slurm COMMAND...
        the tasks of a SLURM job: launch/slurm.sbatch
    restarts.py task FOLDER COMMAND...
        one of these tasks: its exit code becomes a file in FOLDER
    restarts.py judge STATE...
        prints `wait`, `start` or the exit code of a TPU slice whose hosts have these states

launch/README.md has the rules. They know nothing about the model.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OK, FAILURE, USER_ERROR, DIVERGED, STOPPED = 0, 1, 2, 3, 75
CANNOT_START = (126, 127)  # a shell's exit codes for a command that it cannot start
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PROGRESS = "T2T_PROGRESS"
"""Environment variable of a command: the file that it creates to report progress.

The command creates the file when it has saved something that a restart goes on from.
"""


def outcome(codes):
    """Return the exit code of a command whose processes ended with `codes`."""
    if any(code in (USER_ERROR, *CANNOT_START) for code in codes):
        return USER_ERROR
    if DIVERGED in codes:
        return DIVERGED
    if codes and all(code in (OK, STOPPED) for code in codes):
        return STOPPED if STOPPED in codes else OK
    return FAILURE


class Restarts:
    """Count restarts in a row without progress.

    Args:
      limit: restarts in a row without progress that are allowed; 0 for no restarts at all.
      used: restarts that earlier calls have counted.
    """

    def __init__(self, limit, used=0):
        self.limit, self.used = limit, used

    def again(self, code, progressed):
        """Return whether to restart after this outcome: a message, or an empty text."""
        if code in (OK, USER_ERROR, DIVERGED) or not self.limit:
            return ""
        if progressed:
            self.used = 0
        if code == STOPPED:
            return f"exit code {code}, everything is saved; restart"
        if self.used >= self.limit:
            return ""
        self.used += 1
        return f"exit code {code}; restart {self.used} of {self.limit} without progress"


def judge(states):
    """Decide about a TPU slice.

    Args:
      states: by host, `running`, an exit code, or another word if the command must be started.

    Returns:
      `wait`; `start`, on the hosts where nothing runs; or the exit code of the command.
    """
    codes = [int(state) for state in states if state.isdecimal()]
    code, lost = outcome(codes), len(codes) + states.count("running") < len(states)
    if code in (USER_ERROR, DIVERGED):
        return str(code)
    if "running" in states:
        return "start" if lost or STOPPED in codes else "wait"
    return "start" if lost or code == STOPPED else str(code)


def start_guard():
    """Fork a process that kills process groups once this process is gone, even after kill -9.

    It reads the groups from the returned file. An empty line clears the list.
    """
    reader, writer = os.pipe()
    if os.fork():
        os.close(reader)
        return os.fdopen(writer, "w", buffering=1)
    os.close(writer)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # The launcher's output should not stay open because of this process.
    for descriptor in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    groups = []
    for line in os.fdopen(reader):
        groups = [*groups, int(line)] if line.strip() else []
    for group in groups:
        signal_group(group, signal.SIGKILL)
    os._exit(0)


class Children:
    """Start processes, each in a session of its own, and forward signals to them.

    SIGTERM, SIGINT and SIGHUP are forwarded. The processes end when this one is killed. A SIGHUP
    that was ignored from the start, as by nohup, stays ignored.
    """

    def __init__(self):
        self.signal = None  # the first that came
        self.running = {}
        self._guard = start_guard()
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self.forward)

    def forward(self, number, frame):
        """Handle a signal."""
        self.signal = self.signal or number
        self.send(number)

    def send(self, number):
        """Signal all processes."""
        for process in list(self.running.values()):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def start(self, name, command, **options):
        """Start a process; options: of Popen."""
        process = subprocess.Popen(command, start_new_session=True, **options)
        print(process.pid, file=self._guard)
        self.running[name] = process  # last, so that a signal until here is sent once
        if self.signal:
            self.send(self.signal)
        return process

    def end(self, name):
        """Return the exit code of a process that has ended.

        The process is forgotten, and the children that it left behind are killed.
        """
        process = self.running.pop(name)
        signal_group(process.pid, signal.SIGKILL)
        if not self.running:
            print(file=self._guard)
        return exit_code(process)


def exit_code(process):
    """Return the exit code of a process that has ended, 128 + number after a signal."""
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def signal_group(group, number):
    """Signal a process group, if it is there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def say(name, text):
    """Print a line on standard error, also in a signal handler, and where the terminal has gone."""
    with contextlib.suppress(OSError):
        os.write(2, f"{name}: {text}\n".encode())


def take(path):
    """Return whether the file is there, and remove it."""
    there = path.exists()
    path.unlink(missing_ok=True)
    return there


def retry(command, limit, delay, exit_file=None):
    """Run a command again and again, and return its last exit code.

    It ends when the command has finished, when a restart would not help, and on a signal.
    """
    children, restarts = Children(), Restarts(limit)
    with tempfile.TemporaryDirectory(prefix="t2t_restarts.") as folder:
        saved = Path(folder, "saved")
        while True:
            try:
                children.start("command", command, env=os.environ | {PROGRESS: str(saved)}).wait()
                code = children.end("command")
            except OSError as error:
                say("retry", error)
                code = CANNOT_START[1]
            if code in CANNOT_START:
                say("retry", f"exit code {code}, the command cannot be started")
                code = USER_ERROR
            message = "" if children.signal else restarts.again(code, take(saved))
            if not message:
                break
            say("retry", f"{message}, in {delay} s")
            end = time.monotonic() + delay
            while not children.signal and time.monotonic() < end:
                time.sleep(0.1)
            if children.signal:
                break
    if exit_file:
        exit_file.write_text(f"{code}\n")
    return code


def task(folder, command):
    """Run a task of a SLURM job, and write its exit code.

    SLURM signals the command too, so that nothing is forwarded.
    """
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)  # not ignored: the command would inherit that
    try:
        process = subprocess.Popen(command)
        process.wait()
        code = exit_code(process)
    except OSError as error:
        say("slurm", f"the command cannot be started: {error}")
        code = USER_ERROR
    (folder / os.environ.get("SLURM_PROCID", "0")).write_text(f"{code}\n")
    return code


def slurm(command, *, patience=6, pause=10.0):
    """Run the tasks of a SLURM job, requeue it if they must start again, and return its exit code.

    Args:
      patience: how often an unreachable SLURM is asked for the state of the job, or to requeue it.
      pause: seconds between two questions.
    """
    job, start = os.environ["SLURM_JOB_ID"], int(os.environ.get("SLURM_RESTART_COUNT") or 0) + 1
    # The number of one job of an array means all of them.
    if index := os.environ.get("SLURM_ARRAY_TASK_ID"):
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{index}"
    folder = Path(f".t2t_restarts.{job}").absolute()  # all tasks and starts of the job share it
    used, saved = folder / "used", folder / "saved"
    restarts = Restarts(
        int(os.environ.get("T2T_RESTARTS") or 20), int(used.read_text()) if used.exists() else 0
    )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    for number in SIGNALS:
        # A requeue signals this process too, which has to read the tasks' codes.
        signal.signal(number, lambda *_: None)
    wrapper = [sys.executable, str(Path(__file__).absolute()), "task", str(folder)]
    environment = os.environ | {PROGRESS: str(saved)}
    srun = subprocess.Popen(
        ["srun", "--kill-on-bad-exit=0", "--wait=60", *wrapper, *command], env=environment
    )
    srun.wait()
    # The highest code of all tasks, also of those that were killed before they could write theirs.
    codes = [
        exit_code(srun),
        *(int(path.read_text() or FAILURE) for path in folder.iterdir() if path.name.isdecimal()),
    ]
    code, state = outcome(codes), ""
    message = restarts.again(code, saved.exists())
    shutil.rmtree(folder, ignore_errors=True)
    if message:
        answer = ask(["squeue", "--noheader", f"--job={job}", "--format=%T"], patience, pause)
        # SLURM kills a cancelled job long before all questions are asked.
        state = "RUNNING" if answer is None else answer.strip() or "unknown"
    print(
        f"slurm: start {start} of job {job} ended with exit code {code}"
        + (f", state {state}" if state else "")
    )
    if state != "RUNNING":  # final, or the job was cancelled or requeued by someone
        return code
    if restarts.used:
        folder.mkdir(exist_ok=True)
        used.write_text(str(restarts.used))
    print(f"slurm: {message}", flush=True)
    if ask(["scontrol", "requeue", job], patience, pause) is not None:
        return OK
    shutil.rmtree(folder, ignore_errors=True)
    return code


def ask(command, patience, pause):
    """Return the output of a program of SLURM; None if it fails each time."""
    for left in reversed(range(patience)):
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode == 0:
            return done.stdout
        if left:
            time.sleep(pause)
    return None


def whole_number(text):
    """Return the number that a flag has; `08`, `+1` and `1_0` are refused."""
    if not (text.isascii() and text.isdecimal() and str(int(text)) == text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number")
    return int(text)


def parse_retry(argv):
    """Return the flags of `retry`, and the command after `--`."""
    usage = "launch/retry.sh [--restarts=R] [--delay=S] [--exit-file=FILE] -- COMMAND..."
    parser = argparse.ArgumentParser(prog="retry", usage=usage, allow_abbrev=False)
    parser.add_argument("--restarts", type=whole_number, default=20)
    parser.add_argument("--delay", type=whole_number, default=30)
    parser.add_argument("--exit-file", type=Path)
    end = argv.index("--") if "--" in argv else len(argv)
    args, command = parser.parse_args(argv[:end]), argv[end + 1 :]
    if not command:
        parser.error("the command is missing; it follows --")
    if args.exit_file:
        try:
            args.exit_file.open("a").close()  # refused now, not when the command has ended
            if args.exit_file.is_file() and not args.exit_file.is_symlink():  # not /dev/null
                args.exit_file.unlink()
        except OSError as error:
            parser.error(f"--exit-file={args.exit_file} cannot be written: {error.strerror}")
    return args, command


def main(argv):
    action, words = argv[0], argv[1:]
    if action == "retry":
        args, command = parse_retry(words)
        return retry(command, args.restarts, args.delay, args.exit_file)
    if action == "judge":
        print(judge(words))
        return OK
    return slurm(words) if action == "slurm" else task(Path(words[0]), words[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
