"""Experiment trackers: each row of `TRACKERS` sends the numbers of metrics.jsonl to one more place.

Clients are imported when they are opened. They may take their time and may fail: `tracker_threads` runs each in a thread.
"""

import contextlib
import dataclasses
import fcntl
import importlib.abc
import importlib.util
import netrc
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.errors import UserError, install_hint
from t2t_flax.filesystem import is_remote

FINISH_SECONDS = 30.0
"""How long a client may take to send the rest at the end."""
PROJECT = "t2t_flax"
_FLUSH_SECONDS = 1.0
"""How long a client may hold values itself: a kill (SIGKILL) loses them."""
_BOARD_QUEUE = 2**15 - 1
"""Values that may wait, of which a line has some 25."""
_CONNECT_SECONDS = 5.0
_PARAMS_PER_BATCH = 100  # a limit of MLflow


@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """A run as trackers see it. folder: where local files go, the workdir or the local copy of one in an object store.
    resume_step: the last update that is not repeated.
    """

    workdir: epath.Path
    folder: Path
    config: Config
    resume_step: int

    @property
    def name(self) -> str:
        return self.workdir.name or PROJECT

    @property
    def group(self) -> str | None:
        return self.config.log.group or None

    def settings(self) -> dict[str, Any]:
        """The whole config by dotted keys: of a sweep's trial, its overrides are among them."""
        groups = {group: keys for group, keys in config_lib.as_json(self.config).items() if isinstance(keys, dict)}
        return {f"{group}.{key}": value for group, keys in groups.items() for key, value in keys.items()}


class Tracker(Protocol):
    """An open run of a tracker. id: by which it is opened again. place: what to tell the user."""

    id: str
    place: str

    def write(self, step: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in WORKDIR/tensorboard. Values after the resume step are purged and written again."""

    def __init__(self, run: TrackedRun, id: str):
        # It also takes PyTorch's tensors and writes to object stores, so it imports what is installed for that: seconds.
        # Here it gets floats and a local folder.
        with _import_refused("torch", "boto3", "google.cloud.storage"):
            import tensorboardX

        self.id, self.place = "", ""
        folder, purge = str(run.folder / "tensorboard"), run.resume_step + 1
        # Its thread ends at an error such as a full disk. Neither the next value nor the end of the process may then wait
        # for it, as they do when the queue is full.
        self._writer = tensorboardX.SummaryWriter(
            folder,
            purge_step=purge,
            flush_secs=_FLUSH_SECONDS,
            max_queue=_BOARD_QUEUE,
            filename_suffix=f".{run.resume_step}",  # names have seconds, and a short run closes and opens within one
        )
        self._events = self._writer.file_writer.event_writer
        self._events._event_queue.cancel_join_thread()

    def write(self, step: int, values: dict[str, float]) -> None:
        if not self._events._worker.is_alive():
            raise OSError("its files can no longer be written")
        for name, value in values.items():
            self._writer.add_scalar(name.replace("+", "_"), value, step)  # as it renames them, with a warning for each

    def close(self) -> None:
        self._writer.close()


class _Refusal(importlib.abc.MetaPathFinder):
    """Modules that seem not to be installed, in the thread that asks for it alone: others import them meanwhile. It stays where
    it is put: taking a finder away makes the searches of other threads miss the next one.
    """

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname in getattr(self._of_thread, "names", ()):
            raise ModuleNotFoundError(f"{fullname} is not needed here", name=fullname)

    @contextlib.contextmanager
    def __call__(self, *names: str) -> Iterator[None]:
        """Within the block, this thread cannot import these modules, unless they are imported already."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        self._of_thread.names = names
        try:
            yield
        finally:
            self._of_thread.names = ()


_import_refused = _Refusal()


class Wandb:
    """Weights & Biases; without a login or a network in its offline mode, which `wandb sync` sends later."""

    def __init__(self, run: TrackedRun, id: str):
        import wandb

        mode = os.environ.get("WANDB_MODE") or ("online" if _wandb_reachable() else "offline")
        settings = wandb.Settings(
            console="off",  # our output is no one else's
            silent=True,
            symlink=False,
            x_save_requirements=False,
            finish_timeout=FINISH_SECONDS,
            x_transaction_log_flush_interval=_FLUSH_SECONDS,
            x_sync_dir_suffix=str(run.resume_step),  # as for TensorBoard's files: folders are named by the second
        )
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            dir=str(run.folder),
            id=id or os.urandom(4).hex(),
            name=run.name,
            group=run.group,
            config=run.settings(),
            resume="allow",
            mode=mode,
            reinit="create_new",  # runs that train together are open at the same time
            allow_val_change=True,
            settings=settings,
        )
        # Our own step, not wandb's: two lines may be of one update.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        self.id = self._run.id
        folder = os.path.dirname(self._run.dir)
        self.place = "" if self._run.offline else self._run.url or ""
        self.place = self.place or f"offline; `wandb sync {folder}` sends it"

    def write(self, step: int, values: dict[str, float]) -> None:
        self._run.log({"step": step} | values)

    def close(self) -> None:
        self._run.finish()


def _wandb_reachable() -> bool:
    """Whether there is a login, and a server that answers: wandb asks for the one and waits for the other."""
    server = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai")
    if not os.environ.get("WANDB_API_KEY") and not os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        try:
            logins = netrc.netrc(os.environ.get("NETRC") or os.path.expanduser("~/.netrc"))
        except (OSError, netrc.NetrcParseError):
            return False
        if server.hostname not in logins.hosts:
            return False
    if any(os.environ.get(name) for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")):
        return True
    port = server.port or (80 if server.scheme == "http" else 443)
    try:
        with socket.create_connection((server.hostname or "", port), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False


def without_credentials(uri: str) -> str:
    """An address as it may be printed: without user, password and query."""
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl() if parts.netloc else uri


class Mlflow:
    """MLflow at MLFLOW_TRACKING_URI; without one in the SQLite file WORKDIR/mlflow.db."""

    def __init__(self, run: TrackedRun, id: str):
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._uri = os.environ.get("MLFLOW_TRACKING_URI") or _local_mlflow(run)
        self.place = without_credentials(self._uri)
        self._client = MlflowClient(tracking_uri=self._uri)
        if _is_sqlite(self._uri):
            _make_tables(self._client, self._uri)
        try:
            self.id = self._client.get_run(id).info.run_id if id else ""
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            self.id = ""  # of another store
        if self.id:
            self._client.update_run(self.id, status="RUNNING")
            return
        experiment = self._experiment(MlflowException, run)
        tags = {"mlflow.source.name": PROJECT} | ({"group": run.group} if run.group else {})
        self.id = self._client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
        params = [Param(name, str(value)) for name, value in run.settings().items() if value != ""]
        for i in range(0, len(params), _PARAMS_PER_BATCH):
            self._client.log_batch(self.id, params=params[i : i + _PARAMS_PER_BATCH])

    def _experiment(self, exists: type[Exception], run: TrackedRun) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        found = self._client.get_experiment_by_name(name)
        if found is None:
            artifacts = (run.folder / "mlflow_artifacts").absolute().as_uri() if _is_sqlite(self._uri) else None
            try:
                return self._client.create_experiment(name, artifact_location=artifacts)
            except exists:  # another trial of the sweep has just made it
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return found.experiment_id

    def write(self, step: int, values: dict[str, float]) -> None:
        now = int(time.time() * 1000)
        named = {re.sub(r"[^\w\-. :/]", "_", name): value for name, value in values.items()}
        self._client.log_batch(self.id, metrics=[self._metric(k, v, now, step) for k, v in named.items()])

    def close(self) -> None:
        self._client.set_terminated(self.id)


def _local_mlflow(run: TrackedRun) -> str:
    file = run.folder / "mlflow.db"
    if is_remote(run.workdir) and not file.exists() and (run.workdir / "mlflow.db").exists():
        file.write_bytes((run.workdir / "mlflow.db").read_bytes())
    return f"sqlite:///{file.absolute()}"


def _make_tables(client: Any, uri: str) -> None:
    """Has the first access, which makes the tables, in one process at a time: the trials of a sweep start together."""
    path = Path(uri.removeprefix("sqlite:///"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        client.get_experiment_by_name(PROJECT)


def _is_sqlite(uri: str) -> bool:
    return uri.startswith("sqlite:")


class Trackio:
    """Trackio: its local folder (TRACKIO_DIR), or the server or Space that its variables name."""

    def __init__(self, run: TrackedRun, id: str):
        import trackio

        self.id = id or f"{run.name}-{os.urandom(3).hex()}"  # it finds a run by its name
        self.place = ""  # which it prints itself
        self._run = trackio.init(
            project=PROJECT,
            name=self.id,
            group=run.group,
            config=run.settings(),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def write(self, step: int, values: dict[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


@dataclasses.dataclass(frozen=True)
class Kind:
    """open: (run, id of its earlier part or empty) -> Tracker. modules: what it imports, installed by the extra of its name.
    purges: drops what lies after the resume step by itself.
    """

    open: Callable[[TrackedRun, str], Tracker]
    modules: Sequence[str]
    purges: bool = False


TRACKERS: dict[str, Kind] = {
    "tensorboard": Kind(TensorBoard, ("tensorboardX",), purges=True),
    "wandb": Kind(Wandb, ("wandb",)),
    "mlflow": Kind(Mlflow, ("mlflow", "sqlalchemy", "alembic")),
    "trackio": Kind(Trackio, ("trackio",)),
}


def check_installed(config: Config) -> None:
    """Raises UserError if a package of a tracker is missing: before training, not after it."""
    for name in config_lib.tracker_names(config.log.trackers):
        for module in TRACKERS[name].modules:
            if importlib.util.find_spec(module) is None:
                raise UserError(
                    f"config.log.trackers = {config.log.trackers} needs the package {module}: {install_hint(name)}."
                )


def shared_store(folder: Path) -> dict[str, str]:
    """Environment variables by which several runs keep their local trackers in one place, so that they can be compared."""
    if os.environ.get("MLFLOW_TRACKING_URI"):
        return {}
    return {"MLFLOW_TRACKING_URI": f"sqlite:///{(folder / 'mlflow.db').resolve()}"}
