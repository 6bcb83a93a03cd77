"""What the server counts, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_LINES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The counters of one server, in a registry of their own."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("t2t_flax_requests", "Requests answered.", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "t2t_flax_request_seconds",
            "Seconds from a request to the end of its answer.",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.batch_lines = Histogram(
            "t2t_flax_batch_lines", "Lines translated at once.", ["model"], buckets=_LINES, registry=registry
        )
        self.queue = Gauge(
            "t2t_flax_queue_requests", "Requests that wait for the device.", ["model"], registry=registry
        )
        self.sentences = Counter(
            "t2t_flax_sentences", "Lines translated, without empty ones.", ["model"], registry=registry
        )
        self.tokens = Counter(
            "t2t_flax_tokens", "Tokens of the best translations, without EOS.", ["model"], registry=registry
        )

        self.step = Gauge("t2t_flax_step", "Newest update of the checkpoints in use.", ["model"], registry=registry)

    def exposition(self) -> bytes:
        """All counters in Prometheus' text format."""
        return generate_latest(self._registry)
