"""Workers started by the scripts of launch/: each runs the `sweep` command, which joins the sweep in its folder or creates it."""

import argparse
import dataclasses
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from t2t_flax.cli import arguments
from t2t_flax.errors import FAILURE, OK, STOPPED, UserError
from t2t_flax.process_setup import on_stop_signal

SCRIPTS = Path(__file__).parents[3] / "launch"
_MAX_NAME = 30
"""Characters of a worker's name: Kubernetes adds its own to it, and allows 63."""


@dataclasses.dataclass(frozen=True)
class Launcher:
    """A script of launch/. action: its sub-command that starts a worker. program: the command-line tool that it needs.
    install: where that comes from. watches: whether the script runs as long as the worker. local: whether workers see the
    files of the host that starts them, its Python among them.
    """

    script: str
    action: str
    program: str
    install: str
    watches: bool = False
    local: bool = False


LAUNCHERS = {
    "slurm": Launcher("slurm.sh", "run", "sbatch", "run this on a login node of a SLURM cluster", local=True),
    "skypilot": Launcher(
        "skypilot.sh", "run", "sky", "pip install 'skypilot[gcp]' (or of another cloud), then `sky check`"
    ),
    "gke": Launcher("gke.sh", "run", "kubectl", "https://kubernetes.io/docs/tasks/tools"),
    "queued-resource": Launcher(
        "queued_resource.sh", "babysit", "gcloud", "https://cloud.google.com/sdk/docs/install", watches=True
    ),
}


@dataclasses.dataclass(frozen=True)
class Submission:
    """What --submit starts. launcher: a name in LAUNCHERS."""

    launcher: str
    workers: int

    @classmethod
    def parse(cls, text: str) -> "Submission":
        """Reads `gke:2`, `gke` (one worker) or `8` (on SLURM). Raises ArgumentTypeError."""
        launcher, colon, count = text.rpartition(":")
        if not colon and not text.lstrip("-").isdecimal():
            launcher, count = text, "1"
        launcher = launcher or "slurm"
        if launcher not in LAUNCHERS:
            raise argparse.ArgumentTypeError(
                f"there is no launcher {launcher!r}: expected one of {', '.join(LAUNCHERS)}"
            )
        return cls(launcher, arguments.count(1, 10_000)(count))


def launcher_calls(
    submission: Submission, folder: str, command: Sequence[str], options: dict[str, str], *, dry_run: bool
) -> dict[str, list[str]]:
    """The call of launch/ for each worker by its name. options: flags of the script; `name` replaces the folder's name in
    those of the workers. Raises UserError without a checkout or, unless `dry_run`, without the launcher's program.
    """
    name, launcher = submission.launcher, LAUNCHERS[submission.launcher]
    script = SCRIPTS / launcher.script
    if not script.exists():
        raise UserError(f"--submit={name} needs a checkout of the repository, for launch/{launcher.script}.")
    if not dry_run and shutil.which(launcher.program) is None:
        raise UserError(f"--submit={name} needs `{launcher.program}`, which is not on PATH: {launcher.install}.")
    prefix = options.get("name") or worker_name(Path(folder).name)
    flags = [f"--{key}={value}" for key, value in options.items() if key != "name"] + ["--dry-run"] * dry_run
    return {
        worker: [str(script), launcher.action, f"--name={worker}", *flags, "--", *command]
        for worker in (f"{prefix}-{i}" for i in range(1, submission.workers + 1))
    }


def worker_name(folder: str) -> str:
    """A name for workers that every cloud accepts: a letter, then letters, digits and dashes."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")[:_MAX_NAME].strip("-")
    return name if name[:1].isalpha() else f"sweep-{name}".strip("-")


def launch(calls: dict[str, list[str]], *, watches: bool, say: Callable[[str], None] = print) -> int:
    """Runs the calls one after the other or, if they last as long as their workers (`watches`), at the same time: SIGTERM
    and SIGINT then end the calls and leave the workers. Returns the exit code. Raises UserError if a worker was not started.
    """
    sys.stdout.flush()  # before the lines of the calls
    if not watches:
        for i, (worker, call) in enumerate(calls.items()):
            if code := subprocess.run(call).returncode:
                raise UserError(
                    f"{worker} was not started: {shlex.join(call[:2])} ended with exit code {code}; {i} were."
                )
        return OK
    stopped = threading.Event()
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    processes = {worker: subprocess.Popen(call, start_new_session=True, **pipes) for worker, call in calls.items()}

    def stop() -> None:
        stopped.set()
        for process in processes.values():
            process.terminate()

    def follow(worker: str) -> int:
        for line in processes[worker].stdout:
            say(f"[{worker}] {line.rstrip()}")
        return processes[worker].wait()

    with on_stop_signal(stop), ThreadPoolExecutor(len(processes)) as pool:
        codes = list(pool.map(follow, processes))
    if stopped.is_set():
        return STOPPED
    return next((code if code > 0 else FAILURE for code in codes if code), OK)
