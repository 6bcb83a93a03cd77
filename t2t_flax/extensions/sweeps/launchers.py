"""Workers started by the scripts of launch/: each is a pod that joins the sweep in its folder, or creates it."""

import contextlib
import dataclasses
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from t2t_flax.errors import FAILURE, OK, STOPPED, UserError
from t2t_flax.process_setup import on_stop_signal

SCRIPTS = Path(__file__).parents[3] / "launch"
_MAX_NAME = 30
"""Characters of a worker's name: Kubernetes adds its own to it, and allows 63."""


@dataclasses.dataclass(frozen=True)
class Launcher:
    """A script of launch/. action: its sub-command that starts a worker. program: the command-line tool that it needs.
    install: where that comes from. watches: whether the script runs as long as the worker.
    """

    script: str
    action: str
    program: str
    install: str
    watches: bool = False


LAUNCHERS = {
    "skypilot": Launcher(
        "skypilot.sh", "run", "sky", "pip install 'skypilot[gcp]' (or of another cloud), then `sky check`"
    ),
    "gke": Launcher("gke.sh", "run", "kubectl", "https://kubernetes.io/docs/tasks/tools"),
    "queued-resource": Launcher(
        "queued_resource.sh", "babysit", "gcloud", "https://cloud.google.com/sdk/docs/install", watches=True
    ),
}


def commands(
    name: str, folder: str, command: Sequence[str], workers: int, options: dict[str, str], *, dry_run: bool
) -> dict[str, list[str]]:
    """The call of launch/ for each worker by its name. options: flags of the script; `name` replaces the folder's name in
    those of the workers. Raises UserError without a checkout or, unless `dry_run`, without the launcher's program.
    """
    launcher = LAUNCHERS[name]
    script = SCRIPTS / launcher.script
    if not script.exists():
        raise UserError(f"--submit={name} needs a checkout of the repository, for launch/{launcher.script}.")
    if not dry_run and shutil.which(launcher.program) is None:
        raise UserError(f"--submit={name} needs `{launcher.program}`, which is not on PATH: {launcher.install}.")
    prefix = options.get("name") or worker_name(Path(folder).name)
    flags = [f"--{key}={value}" for key, value in options.items() if key != "name"] + ["--dry-run"] * dry_run
    return {
        worker: [str(script), launcher.action, f"--name={worker}", *flags, "--", *command]
        for worker in (f"{prefix}-{i}" for i in range(1, workers + 1))
    }


def worker_name(folder: str) -> str:
    """A name for workers that every cloud accepts: a letter, then letters, digits and dashes."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")[:_MAX_NAME].strip("-")
    return name if name[:1].isalpha() else f"sweep-{name}".strip("-")


def launch(name: str, calls: dict[str, list[str]], say: Callable[[str], None] = print) -> int:
    """Runs the calls one after the other, or beside each other if they last as long as their workers; SIGTERM and SIGINT end
    those, and leave the workers. Returns the exit code. Raises UserError if a worker could not be started.
    """
    sys.stdout.flush()  # before the lines of the calls
    if not LAUNCHERS[name].watches:
        for i, (worker, call) in enumerate(calls.items()):
            if code := subprocess.run(call).returncode:
                raise UserError(
                    f"{worker} was not started: {shlex.join(call[:2])} ended with exit code {code}; {i} were."
                )
        return OK
    stopped = threading.Event()
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_prefixed(worker, call, say)) for worker, call in calls.items()]

        def stop() -> None:
            stopped.set()
            for process in processes:
                process.send_signal(signal.SIGTERM)

        with on_stop_signal(stop):
            codes = [process.wait() for process in processes]
    if stopped.is_set():
        return STOPPED
    return next((code if code > 0 else FAILURE for code in codes if code), OK)


@contextlib.contextmanager
def _prefixed(worker: str, call: list[str], say: Callable[[str], None]) -> Iterator[subprocess.Popen]:
    """The process of a call, whose lines are printed with the worker's name; waits for the last one."""
    process = subprocess.Popen(
        call,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            say(f"[{worker}] {line.rstrip()}")

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield process
    thread.join(5.0)
