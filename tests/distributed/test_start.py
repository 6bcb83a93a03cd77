"""How a process of several begins, where it fails for another reason than time."""

import jax
import pytest

from t2t_flax.config import Distributed
from t2t_flax.distributed import initialize as start
from t2t_flax.errors import UserError


def test_a_trial_of_a_sweep_is_alone_whatever_surrounds_it(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n")
    with pytest.raises(UserError, match="sweep runs as one process, this is SLURM"):
        start.alone("sweep")
    monkeypatch.setenv("T2T_ALONE", "1")
    start.alone("sweep")
    assert start.start(Distributed()).count == 1


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
