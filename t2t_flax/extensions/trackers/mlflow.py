"""MLflow."""

import fcntl
import os
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from t2t_flax.extensions.trackers.tracker import PROJECT, TrackedRun
from t2t_flax.filesystem import is_remote

_PARAMS_PER_BATCH = 100  # a limit of MLflow


class Mlflow:
    """At MLFLOW_TRACKING_URI; without one in the SQLite file mlflow.db in the workdir, or in the sweep of this run."""

    modules = ("mlflow", "sqlalchemy", "alembic")
    purges = False

    def __init__(self, run: TrackedRun, id: str):
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._uri = os.environ.get("MLFLOW_TRACKING_URI") or _local_store(run)
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


def without_credentials(uri: str) -> str:
    """An address as it may be printed: without user, password and query."""
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl() if parts.netloc else uri


def _local_store(run: TrackedRun) -> str:
    if run.runs_folder:
        return f"sqlite:///{(run.runs_folder / 'mlflow.db').absolute()}"
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
