"""A machine with GPUs divided among trials."""

import os

import pytest

from t2t_flax.errors import UserError
from t2t_flax.sweeps.shares import shares


def test_gpus_are_shared_out(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert [s.environment["CUDA_VISIBLE_DEVICES"] for s in shares(2)] == ["0,1", "2,3"]
    eight = [s.environment for s in shares(8)]
    assert [e["CUDA_VISIBLE_DEVICES"] for e in eight] == ["0", "0", "1", "1", "2", "2", "3", "3"]
    assert eight[0]["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.450"
    with pytest.raises(UserError, match="evenly"):
        shares(3)
