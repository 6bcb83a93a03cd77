"""The largest batch: a line through two compilations, one more to confirm, and what is said where it cannot be."""

import pytest
from helpers.configs import small_config

from t2t_flax.planning import plan as plan_lib
from t2t_flax.planning import report
from t2t_flax.planning.topology import parse

GIB = 2.0**30
V5E = parse("v5e-8")


def compiler(limit: float, fixed: float, per_row: float, bend: float = 0.0):
    """A compiler whose peak is fixed + per_row * rows + bend * rows^2 bytes, and that refuses more than `limit`."""
    asked = []

    def peak(config, topology, rows):
        asked.append(rows)
        needed = fixed + per_row * rows + bend * rows**2
        common = {"shape": [256, 8 * rows, 1], "shards": 8}
        if needed > limit:
            return common | {"fits": False, "needed_bytes": needed, "available_bytes": limit}
        return common | {"fits": True, "memory": {"peak": needed}}

    return peak, asked


def test_two_compilations_and_one_to_confirm(monkeypatch):
    peak, asked = compiler(15.75 * GIB, 2 * GIB, 0.1 * GIB)
    monkeypatch.setattr(plan_lib, "_peak", peak)
    found = plan_lib.largest_batch(small_config(), V5E)
    assert asked == [8, 16, 137] and found["rows"] == 137 and found["confirmed"]  # (15.75 - 2) / 0.1
    assert found["bytes_per_row"] == pytest.approx(0.1 * GIB)
    assert found["bytes_without_rows"] == pytest.approx(2 * GIB)
    assert found["tokens_of_all_devices"] == 137 * 8 * 256


def test_a_refusal_is_told(monkeypatch):
    peak, _ = compiler(15.75 * GIB, 2 * GIB, 0.1 * GIB, bend=0.001 * GIB)
    monkeypatch.setattr(plan_lib, "_peak", peak)
    found = plan_lib.largest_batch(small_config(), V5E)
    assert not found["confirmed"] and found["peak"] > 15.75 * GIB
    assert "REFUSES" in "\n".join(report._largest({"largest_batch": found}))


def test_a_model_that_fits_nowhere_is_told(monkeypatch):
    peak, _ = compiler(15.75 * GIB, 20 * GIB, 0.1 * GIB)
    monkeypatch.setattr(plan_lib, "_peak", peak)
    found = plan_lib.largest_batch(small_config(), V5E)
    assert found["rows"] is None and "1 row does not fit" in found["why"]


def test_a_model_of_which_few_rows_fit_is_measured_with_fewer(monkeypatch):
    peak, asked = compiler(15.75 * GIB, 2 * GIB, 1.0 * GIB)
    monkeypatch.setattr(plan_lib, "_peak", peak)
    found = plan_lib.largest_batch(small_config(), V5E)
    assert found["rows"] == 13 and found["confirmed"] and found["measured_rows"] == [4, 8]
    assert asked == [8, 16, 4, 13]
