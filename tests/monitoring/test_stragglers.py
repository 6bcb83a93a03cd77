"""Straggler detection."""

import json

import jax

from t2t_flax.config import Distributed
from t2t_flax.monitoring.stragglers import StragglerDetector, stragglers


def reports(*rows):
    return {i: dict(zip(("data", "interval", "product"), row, strict=True)) for i, row in enumerate(rows)}


def test_straggler_share_sets_the_threshold():
    rows = reports((0.1, 10.0, 1.0), (0.1, 10.0, 1.0), (0.1, 10.0, 1.25), (3.1, 10.0, 1.0))
    assert sorted(stragglers(rows, Distributed(straggler_share=0.1).straggler_share)) == [2, 3]
    assert sorted(stragglers(rows, 0.25)) == [3]
    assert stragglers(rows, 0.5) == {}
    messages = stragglers(rows, 0.1)
    assert "1.2 times as long" in messages[2] and "up to 20% of each update" in messages[2]
    assert "waits for its input" in messages[3] and "30% of the time" in messages[3]


def test_slower_of_two_processes_is_reported():
    assert list(stragglers(reports((0.0, 1.0, 4.0), (0.0, 1.0, 1.0)), 0.1)) == [0]


class Lead:
    """Process 0 of three, with reports of the others."""

    index, is_lead, count = 0, True, 3

    def __init__(self, reports):
        self.reports = reports

    def put(self, key, value):
        self.reports[int(key.split("/")[1])] = json.loads(value)

    def entries(self, folder):
        return {str(index): json.dumps(report) for index, report in self.reports.items()}

    def name_of(self, index):
        return f"process {index}"


def test_comparing_compiles_nothing():
    """The benchmark product is compiled before the first update; later, compiling would look like a hang."""
    detector, compiled = StragglerDetector(Lead({}), 0.2), []
    listener = lambda event, seconds, **_: compiled.append(event) if "/compile/" in event else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        detector.compare({"data": 0.0})
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert compiled == []


def test_persistent_straggler_is_reported_repeatedly():
    slow = dict(data=50.0, interval=100.0, product=1e9)
    detector = StragglerDetector(Lead({1: slow, 2: slow | dict(data=0.0)}), 0.2)
    messages = [detector.compare({"data": 0.0}) for _ in range(14)]
    assert "process 1 waits for its input" in messages[2]
    assert [i for i, text in enumerate(messages) if text] == [2, 12]
