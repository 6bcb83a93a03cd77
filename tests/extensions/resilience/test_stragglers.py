"""Straggler detection."""

import json

import jax

from t2t_flax.extensions.resilience import Resilience
from t2t_flax.extensions.resilience.stragglers import StragglerDetector, stragglers
from t2t_flax.training.train_state import TrainProgress


def reports(*rows):
    return {i: dict(zip(("data", "interval", "product"), row, strict=True)) for i, row in enumerate(rows)}


def test_straggler_share_sets_the_threshold():
    rows = reports((0.1, 10.0, 1.0), (0.1, 10.0, 1.0), (0.1, 10.0, 1.25), (3.1, 10.0, 1.0))
    assert sorted(stragglers(rows, Resilience(straggler_share=0.1).straggler_share)) == [2, 3]
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
        self.reports, self.said, self.step = reports, [], 0

    def put(self, key, value):
        self.reports[int(key.split("/")[1])] = json.loads(value)

    def entries(self, folder):
        return {str(index): json.dumps(report) for index, report in self.reports.items()}

    def name_of(self, index):
        return f"process {index}"

    def say(self, text):
        self.said.append((self.step, text))


def started(lead):
    detector = StragglerDetector(lead, 0.2, every=2)
    detector.on_start(None, TrainProgress())
    return detector


def test_comparing_compiles_nothing():
    """The benchmark product is compiled before the first update; later, compiling would look like a hang."""
    detector, compiled = started(Lead({})), []
    listener = lambda event, seconds, **_: compiled.append(event) if "/compile/" in event else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        detector.compare({"data": 0.0})
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert compiled == []


def test_persistent_straggler_is_reported_repeatedly():
    slow = dict(data=50.0, interval=100.0, product=1e9)
    lead = Lead({1: slow, 2: slow | dict(data=0.0)})
    detector = started(lead)
    for step in range(1, 29):
        lead.step = step
        detector.on_update(step, None, {"seconds": {"data": 0.0}} if step % 2 == 0 else {})
    assert [step for step, _ in lead.said] == [6, 26]
    assert "process 1 waits for its input" in lead.said[0][1]
