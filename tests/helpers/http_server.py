"""The application of `serve` in this process. Needs the extra `serve` and httpx."""

import contextlib
import dataclasses
import threading

from fastapi.testclient import TestClient

from helpers.processes import wait_for
from t2t_flax.extensions.serving.app import create_app
from t2t_flax.extensions.serving.metrics import Metrics
from t2t_flax.extensions.serving.model import ServedModel
from t2t_flax.extensions.serving.service import Settings


@contextlib.contextmanager
def serving(
    runs, *, ready=True, max_batch=4, max_queue=64, health_limit=60.0, timeout=120.0, **settings
):
    """Serve `{name: run}`; with `ready`, once its models are warmed up.

    Args:
      settings: see `Settings`.
    """
    metrics, failed = Metrics(), threading.Event()
    limits = dict(max_batch=max_batch, max_queue=max_queue, health_limit=health_limit)
    models = [
        ServedModel(name, run.config, lambda run=run: run, metrics, **limits)
        for name, run in runs.items()
    ]
    app = create_app(models, Settings(timeout=timeout, **settings), metrics, failed.set)
    with TestClient(app, raise_server_exceptions=False) as client:
        server = Server(client, models, failed)
        if ready:
            wait_for(
                lambda: failed.is_set() or server.get("/ready").status_code == 200, "ready server"
            )
            assert not failed.is_set(), [model.error for model in models]
        yield server


@dataclasses.dataclass
class Server:
    client: TestClient
    models: list
    failed: threading.Event

    def get(self, path, **keys):
        return self.client.get(path, **keys)

    def post(self, path, json=None, **keys):
        return self.client.post(path, json=json, **keys)

    def metric(self, name, **labels):
        """The value of a counter, 0 if there is none."""
        found = self.models[0]._metrics.registry.get_sample_value(f"t2t_flax_{name}", labels)
        return found or 0.0


def with_fields(run, **changes):
    """The run with other fields of `config.decode`."""
    decode = dataclasses.replace(run.config.decode, **changes)
    return dataclasses.replace(run, config=dataclasses.replace(run.config, decode=decode))


def as_kind(run, kind):
    """The run as an object of a subclass."""
    return kind(**{field.name: getattr(run, field.name) for field in dataclasses.fields(run)})
