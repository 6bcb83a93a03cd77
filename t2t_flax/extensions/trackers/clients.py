"""Clients of the trackers: one function each, which opens a run.

A client may take its time or fail. To add one: a function, its row in `CLIENTS`, and its name in
`keys.NAMES`.
"""

import contextlib
import dataclasses
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.extensions.shared.addresses import without_credentials
from t2t_flax.extensions.shared.processes import RUNS_FOLDER
from t2t_flax.extensions.trackers import Trackers
from t2t_flax.files import is_remote

PROJECT = "t2t_flax"
FINISH_SECONDS = 30.0
"""Seconds in which a client may send the rest at the end."""
FLUSH_SECONDS = 1.0
"""Seconds that a client may hold values itself.

A kill (SIGKILL) loses them.
"""
_TENSORBOARD_QUEUE = 2**15 - 1
"""Maximum number of waiting values; a line has some 25."""
_MLFLOW_PARAMS = 100
"""MLflow's limit of parameters in a batch."""


@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """A run as trackers see it.

    Args:
        folder: folder of local files, the workdir or the local copy of one in an object store.
        resume_step: last update that is not repeated.
    """

    workdir: epath.Path
    folder: Path
    config: Config
    resume_step: int

    @property
    def name(self) -> str:
        return self.workdir.name or PROJECT

    @property
    def runs_folder(self) -> Path | None:
        """Folder of the runs that this one is compared with, such as a sweep."""
        return Path(os.environ[RUNS_FOLDER]) if os.environ.get(RUNS_FOLDER) else None

    @property
    def group(self) -> str | None:
        return Trackers.of(self.config).group or (
            self.runs_folder.name if self.runs_folder else None
        )

    def settings(self) -> dict[str, Any]:
        """Whole config by dotted keys; a sweep trial's overrides are among them."""
        groups = {
            group: keys
            for group, keys in config_lib.as_json(self.config).items()
            if isinstance(keys, dict)
        }
        return {
            f"{group}.{key}": value for group, keys in groups.items() for key, value in keys.items()
        }


@dataclasses.dataclass(frozen=True)
class Tracker:
    """An open run of a tracker.

    Args:
        write: takes an update and its numbers.
        id: identifier with which the run is opened again.
        place: location to tell the user.
    """

    write: Callable[[int, dict[str, float]], None]
    close: Callable[[], None]
    id: str = ""
    place: str = ""


def tensorboard(run: TrackedRun, id: str) -> Tracker:
    """Write event files in WORKDIR/tensorboard.

    Events after the resume step are purged and written again.
    """
    import tensorboardX

    # Its thread ends at an error such as a full disk. Neither the next value nor the end of the
    # process may then wait for it, as they do when the queue is full.
    writer = tensorboardX.SummaryWriter(
        str(run.folder / "tensorboard"),
        purge_step=run.resume_step + 1,
        flush_secs=FLUSH_SECONDS,
        max_queue=_TENSORBOARD_QUEUE,
        # File names have seconds; a short run closes and opens within one.
        filename_suffix=f".{run.resume_step}",
    )
    events = writer.file_writer.event_writer
    events._event_queue.cancel_join_thread()

    def write(step: int, values: dict[str, float]) -> None:
        if not events._worker.is_alive():
            raise OSError("its files can no longer be written")
        for name, value in values.items():
            # It renames them anyway, with a warning for each.
            writer.add_scalar(name.replace("+", "_"), value, step)

    return Tracker(write, writer.close)


def wandb(run: TrackedRun, id: str) -> Tracker:
    """Open a Weights & Biases run.

    Without a login or a network it is in offline mode, which `wandb sync` sends later.
    """
    import wandb as client

    def mode() -> str:
        try:  # unlike `init`, asks for no login and waits for no server
            return "online" if client.login(prompt=False) else "offline"
        except client.errors.AuthenticationError:
            return "offline"

    settings = client.Settings(
        console="off",  # do not capture our output
        silent=True,
        symlink=False,
        x_save_requirements=False,
        finish_timeout=FINISH_SECONDS,
        x_transaction_log_flush_interval=FLUSH_SECONDS,
        x_sync_dir_suffix=str(run.resume_step),  # folder names have seconds
    )
    opened = client.init(
        project=os.environ.get("WANDB_PROJECT") or PROJECT,
        dir=str(run.folder),
        id=id or os.urandom(4).hex(),
        name=run.name,
        group=run.group,
        config=run.settings(),
        resume="allow",
        mode=os.environ.get("WANDB_MODE") or mode(),
        reinit="create_new",  # a program may train several runs
        allow_val_change=True,
        settings=settings,
    )
    # Our own step, not wandb's: two lines may belong to one update.
    opened.define_metric("step", hidden=True)
    opened.define_metric("*", step_metric="step")
    place = "" if opened.offline else opened.url or ""
    place = place or f"offline; `wandb sync {os.path.dirname(opened.dir)}` sends it"
    return Tracker(
        lambda step, values: opened.log({"step": step} | values), opened.finish, opened.id, place
    )


def trackio(run: TrackedRun, id: str) -> Tracker:
    """Open a run of Hugging Face's Trackio.

    It is in the local folder (TRACKIO_DIR), or the server or Space that its variables name.
    """
    import trackio as client

    id = id or f"{run.name}-{os.urandom(3).hex()}"  # Trackio finds a run by its name
    opened = client.init(
        project=PROJECT,
        name=id,
        group=run.group,
        config=run.settings(),
        resume="allow",
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    return Tracker(lambda step, values: opened.log(dict(values), step=step), opened.finish, id)


def mlflow(run: TrackedRun, id: str) -> Tracker:
    """Open a run of MLflow at MLFLOW_TRACKING_URI.

    Without one, it is in the SQLite file mlflow.db in the workdir, or in the sweep of this run.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    own, shared = os.environ.get("MLFLOW_TRACKING_URI"), run.runs_folder
    store = (shared or run.folder).absolute() / "mlflow.db"
    uri = own or f"sqlite:///{store}"
    database = _sqlite_file(uri)
    experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
    artifacts = (run.folder / "mlflow_artifacts").absolute().as_uri() if database else None
    if (
        not own
        and not shared
        and is_remote(run.workdir)
        and (run.workdir / "mlflow.db").exists()
        and not store.exists()
    ):
        store.write_bytes((run.workdir / "mlflow.db").read_bytes())
    # The trials of a sweep start together: the first one makes the tables and the experiment. A
    # server does so by itself, and one that does not answer must hold up no other run.
    with _locked(database.with_suffix(".lock")) if database else contextlib.nullcontext():
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(experiment)
        try:
            number = (
                found.experiment_id
                if found
                else client.create_experiment(experiment, artifact_location=artifacts)
            )
        except MlflowException:  # another run may have just made it
            if (found := client.get_experiment_by_name(experiment)) is None:
                raise
            number = found.experiment_id
    try:
        id = client.get_run(id).info.run_id if id else ""
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        id = ""  # the id is from another store
    if id:
        client.update_run(id, status="RUNNING")
    else:
        tags = {"mlflow.source.name": PROJECT} | ({"group": run.group} if run.group else {})
        id = client.create_run(number, tags=tags, run_name=run.name).info.run_id
        params = [Param(name, str(value)) for name, value in run.settings().items() if value != ""]
        for i in range(0, len(params), _MLFLOW_PARAMS):
            client.log_batch(id, params=params[i : i + _MLFLOW_PARAMS])

    def write(step: int, values: dict[str, float]) -> None:
        now = int(time.time() * 1000)
        named = {re.sub(r"[^\w\-. :/]", "_", name): value for name, value in values.items()}
        client.log_batch(
            id, metrics=[Metric(name, value, now, step) for name, value in named.items()]
        )

    return Tracker(write, lambda: client.set_terminated(id), id, without_credentials(uri))


def _sqlite_file(uri: str) -> Path | None:
    """Return the file of a SQLite store; None for a server."""
    path = uri.removeprefix("sqlite:///").partition("?")[0]
    return Path(path) if uri.startswith("sqlite:///") and path not in ("", ":memory:") else None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


CLIENTS: dict[str, Callable[[TrackedRun, str], Tracker]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "mlflow": mlflow,
    "trackio": trackio,
}
"""Functions that take a run and the id of its earlier part, or ""."""
MODULES = {"tensorboard": ("tensorboardX",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}
"""Modules that the extra of a client installs.

A client without an entry has one module of its name.
"""
PURGING = ("tensorboard",)
"""Clients that drop the values after the resume step by themselves."""
