"""Joining the processes of a run, by environment variables."""

import jax
import pytest
from helpers.refusals import refused

from t2t_flax.config import Distributed
from t2t_flax.distributed.coordination import ProcessGroupError, initialize, require_single_process


def set_environment(monkeypatch, count="2", index="0", address="localhost:12345"):
    for name, value in (
        ("T2T_NUM_PROCESSES", count),
        ("T2T_PROCESS_ID", index),
        ("JAX_COORDINATOR_ADDRESS", address),
    ):
        monkeypatch.setenv(name, value)


def test_sweep_trial_ignores_the_cluster(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n")
    with refused("score", "SLURM"):
        require_single_process("score")
    monkeypatch.setenv("T2T_ALONE", "1")
    require_single_process("score")
    assert initialize(Distributed()).count == 1


def test_single_process_command_is_refused_in_a_cluster(monkeypatch):
    set_environment(monkeypatch, index="1")
    with refused("score", "process 1"):
        require_single_process("score")


def test_failed_initialization_names_its_cause(monkeypatch):
    def refuse(*, heartbeat_timeout_seconds, **_):
        assert heartbeat_timeout_seconds > 24 * 3600, (
            "JAX would abort processes that were suspended together"
        )
        raise RuntimeError("INVALID_ARGUMENT: task 3 of 2\nmore")

    set_environment(monkeypatch)
    monkeypatch.setattr(jax.distributed, "initialize", refuse)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    with refused("INVALID_ARGUMENT", error=ProcessGroupError):
        initialize(Distributed())


@pytest.mark.parametrize(
    ("index", "address"), [("0", ""), ("2", "a:1"), ("x", "a:1"), ("1", "a"), ("1", ":1")]
)
def test_invalid_variables_are_refused(index, address, monkeypatch):
    set_environment(monkeypatch, "2", index, address)
    with refused("T2T_PROCESS_ID", "JAX_COORDINATOR_ADDRESS", f"'{index}'", f"'{address}'"):
        initialize(Distributed())
