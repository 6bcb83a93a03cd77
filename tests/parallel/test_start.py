"""How a process of several begins, where it fails for another reason than time."""

import jax
import pytest

from t2t_flax.config import Distributed
from t2t_flax.parallel import start


def test_an_initialisation_that_fails_is_said_with_its_cause(monkeypatch):
    def refuse(**how):
        raise RuntimeError("INVALID_ARGUMENT: task 3 of 2\nmore")

    monkeypatch.setenv("T2T_NUM_PROCESSES", "2")
    monkeypatch.setenv("T2T_PROCESS_ID", "0")
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "localhost:12345")
    monkeypatch.setattr(jax.distributed, "initialize", refuse)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    with pytest.raises(start.NotTogether, match=r"could not join the others. \(INVALID_ARGUMENT: task 3 of 2\)"):
        start.start(Distributed(), lambda _: None)
