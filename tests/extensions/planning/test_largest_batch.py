"""The largest batch: extrapolated from two compilations and confirmed by a third, or none if nothing fits."""

import pytest
from helpers.configs import small_config

from t2t_flax.extensions.planning import plan as plan_lib
from t2t_flax.extensions.planning import report
from t2t_flax.extensions.planning.topology import parse

GIB = 2.0**30
V5E = parse("v5e-8")


def compiler(limit: float, fixed: float, per_row: float, bend: float = 0.0):
    """A compiler whose peak is fixed + per_row * rows + bend * rows^2 bytes, and that refuses more than `limit`."""
    compiled = []

    def compile_rows(config, topology, rows):
        compiled.append(rows)
        needed = fixed + per_row * rows + bend * rows**2
        common = {"length": 256, "shards": 8}
        if needed > limit:
            return common | {"fits": False, "needed_bytes": needed, "available_bytes": limit}
        return common | {"fits": True, "memory": {"peak": needed}}

    return compile_rows, compiled


def test_linear_memory_estimate_is_confirmed(monkeypatch):
    compile_rows, compiled = compiler(15.75 * GIB, 2 * GIB, 0.1 * GIB)
    monkeypatch.setattr(plan_lib, "_compile_rows", compile_rows)
    largest = plan_lib.largest_batch(small_config(), V5E)
    assert compiled == [8, 16, 137] and largest["rows"] == 137 and largest["confirmed"]  # (15.75 - 2) / 0.1
    assert largest["bytes_per_row"] == pytest.approx(0.1 * GIB)
    assert largest["bytes_without_rows"] == pytest.approx(2 * GIB)
    assert largest["tokens_of_all_devices"] == 137 * 8 * 256


def test_batch_that_does_not_fit_is_reported(monkeypatch):
    compile_rows, _ = compiler(15.75 * GIB, 2 * GIB, 0.1 * GIB, bend=0.001 * GIB)
    monkeypatch.setattr(plan_lib, "_compile_rows", compile_rows)
    largest = plan_lib.largest_batch(small_config(), V5E)
    assert not largest["confirmed"] and largest["peak"] > 15.75 * GIB
    assert "does NOT fit" in "\n".join(report._largest({"largest_batch": largest}))


def test_model_that_does_not_fit_has_no_largest_batch(monkeypatch):
    compile_rows, _ = compiler(15.75 * GIB, 20 * GIB, 0.1 * GIB)
    monkeypatch.setattr(plan_lib, "_compile_rows", compile_rows)
    largest = plan_lib.largest_batch(small_config(), V5E)
    assert largest["rows"] is None and "1 row on a device does not fit" in largest["why"]


def test_large_model_is_measured_with_fewer_rows(monkeypatch):
    compile_rows, compiled = compiler(15.75 * GIB, 2 * GIB, 1.0 * GIB)
    monkeypatch.setattr(plan_lib, "_compile_rows", compile_rows)
    largest = plan_lib.largest_batch(small_config(), V5E)
    assert largest["rows"] == 13 and largest["confirmed"] and largest["measured_rows"] == [4, 8]
    assert compiled == [8, 16, 4, 13]
