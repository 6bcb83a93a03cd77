"""Counters for Prometheus."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_LINES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one server, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        ProcessCollector(**own)
        self.requests = Counter(
            "t2t_flax_requests", "Requests answered.", ["path", "status"], **own
        )
        self.seconds = Histogram(
            "t2t_flax_request_seconds", "Seconds of a request.", ["path"], buckets=_SECONDS, **own
        )
        self.lines = Histogram(
            "t2t_flax_batch_lines", "Lines of a batch.", ["model"], buckets=_LINES, **own
        )
        self.tokens = Counter(
            "t2t_flax_tokens", "Tokens of the best translations.", ["model"], **own
        )
        self.queue = Gauge(
            "t2t_flax_queue_requests", "Requests that wait for the device.", ["model"], **own
        )

    def exposition(self) -> bytes:
        """Return all counters in Prometheus' text format."""
        return generate_latest(self.registry)
