"""A tiny run, and the real HTTP server in a thread of this process."""

import dataclasses
import threading

import jax
import pytest
from helpers.runs import start, tiny_run

from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.evaluation.restore import TrainedModel, load
from t2t_flax.training import loop

DECODE = {"decode.beam_size": "3", "decode.max_length_offset": "3", "decode.max_source_length": "40"}


@pytest.fixture(scope="session")
def workdir(tmp_path_factory, cache):
    folder = tmp_path_factory.mktemp("serving") / "tiny"
    config = tiny_run(folder, steps=2, checkpoint=dict(every_steps=2, keep_last=1))
    loop.train(start(config, folder, cache), score=None)
    return folder


@pytest.fixture(scope="session")
def run(workdir) -> TrainedModel:
    """The run on one of the simulated devices, as a user's machine has one."""
    loaded = load(workdir, overrides=DECODE)
    mesh = mesh_lib.make_mesh(dataclasses.replace(loaded.config.mesh, data=1), jax.devices()[:1])
    params = jax.device_put(jax.device_get(loaded.params), mesh_lib.named(mesh, mesh_lib.REPLICATED))
    return dataclasses.replace(loaded, mesh=mesh).with_params(params)


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
    kind = type("Gated", (GatedModel,), {"gate": threading.Event(), "entered": threading.Semaphore(0)})
    kind.gate.set()
    yield kind(**{field.name: getattr(run, field.name) for field in dataclasses.fields(run)})
    kind.gate.set()
