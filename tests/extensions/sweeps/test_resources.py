"""A machine divided among trials."""

import os

import pytest

from t2t_flax.errors import UserError
from t2t_flax.extensions.sweeps.resources import divide_machine


def test_gpus_are_divided_or_shared(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert [r.environment["CUDA_VISIBLE_DEVICES"] for r in divide_machine(2)] == ["0,1", "2,3"]
    eight = [r.environment for r in divide_machine(8)]
    assert [e["CUDA_VISIBLE_DEVICES"] for e in eight] == ["0", "0", "1", "1", "2", "2", "3", "3"]
    assert {r.sharing for r in divide_machine(8)} == {2} and {r.sharing for r in divide_machine(2)} == {1}
    assert eight[0]["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.450"
    assert eight[0]["XLA_CLIENT_MEM_FRACTION"] == ""  # also where the user has set it: JAX refuses both
    with pytest.raises(UserError, match="evenly"):
        divide_machine(3)


def test_cores_are_divided_and_must_suffice(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4, 7, 9, 12}, raising=False)
    assert [r.cores for r in divide_machine(2)] == [(3, 4), (7, 9, 12)]
    assert divide_machine(1)[0].cores == ()
    with pytest.raises(UserError, match="one core per trial, and this machine has 5: use 5 or fewer"):
        divide_machine(6)
