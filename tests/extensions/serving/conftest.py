"""A tiny run, and a server of it."""

import dataclasses
import threading

import pytest
from helpers.runs import start, tiny_run

from t2t_flax.evaluation.restore import TrainedModel, load
from t2t_flax.training import loop

DECODE = {
    "decode.beam_size": "3",
    "decode.max_length_offset": "3",
    "decode.max_source_length": "40",
}


@pytest.fixture(scope="session")
def workdir(tmp_path_factory, cache):
    folder = tmp_path_factory.mktemp("serving") / "tiny"
    config = tiny_run(folder, steps=2, checkpoint=dict(every_steps=2, keep_last=1))
    loop.train(start(config, folder, cache), score=None)
    return folder


@pytest.fixture(scope="session")
def run(workdir) -> TrainedModel:
    return load(workdir, overrides=DECODE)


@pytest.fixture(scope="session")
def server(run):
    for package in ("fastapi", "python_multipart", "prometheus_client", "uvicorn", "httpx"):
        pytest.importorskip(package, reason="needs the extra serve and httpx")
    from helpers.http_server import serving

    with serving({"tiny": run}) as server:
        yield server


class GatedModel(TrainedModel):
    """A run whose translations wait while it is held; `entered` counts calls since then."""

    gate: threading.Event
    entered: threading.Semaphore

    def translate(self, lines, **keys):
        self.entered.release()
        assert self.gate.wait(250)
        return super().translate(lines, **keys)

    def hold(self):
        self.gate.clear()
        while self.entered.acquire(blocking=False):
            pass

    def wait_until_busy(self):
        assert self.entered.acquire(timeout=250)


@pytest.fixture
def gated(run):
    """The run as a GatedModel that is not held yet, so that it can be warmed up."""
    kind = type(
        "Gated", (GatedModel,), {"gate": threading.Event(), "entered": threading.Semaphore(0)}
    )
    kind.gate.set()
    yield kind(**{field.name: getattr(run, field.name) for field in dataclasses.fields(run)})
    kind.gate.set()
