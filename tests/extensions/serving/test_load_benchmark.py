"""benchmarks.serving: its clients against a real server, and the numbers that it reports."""

import pytest

for package in ("fastapi", "uvicorn", "prometheus_client", "httpx"):
    pytest.importorskip(package, reason="needs the extra serve and httpx")
from helpers.http_server import serving  # noqa: E402

from benchmarks import http_load  # noqa: E402
from benchmarks.serving import beside_quiet, entry_of, percentile  # noqa: E402
from t2t_flax.data.sources import toy  # noqa: E402
from t2t_flax.extensions.serving.access import Access, Keys  # noqa: E402
from t2t_flax.tasks import task_of  # noqa: E402

LINES = [source for source, _ in toy.pairs("test", 6)]


def translate_all(server):
    """What has to be compiled for the lines then takes none of the time that is measured."""
    body = {"q": LINES, "source": "en", "target": "de", "api_key": "secret"}
    assert server.post("/translate", body).status_code == 200


def test_clients_get_the_batchs_translations_and_count_errors(run):
    with serving({"tiny": run}) as server:
        translate_all(server)
        load = http_load.run(server.url, [*LINES, "\x00"], ("en", "de"), clients=1, seconds=5.0, before=0.0)
    task = task_of(run.config)
    alone = [task.postprocess(line, t.text) for line, t in zip(LINES, run.translate(LINES), strict=True)]
    entry = entry_of(load, {"translations": alone}, LINES)
    assert entry["requests"] == len(load.latencies) > 0 and entry["different"] == 0
    assert set(entry["errors"]) <= {"400"} and 0 < entry["p50_ms"] <= entry["p99_ms"]
    wrong = entry_of(load, {"translations": ["other"] * len(LINES)}, LINES)
    assert wrong["different"] == len(load.translations)


@pytest.mark.parametrize("key", ["secret", ""])
def test_clients_give_their_key(run, key):
    with serving({"tiny": run}, access=Access(Keys(["secret"]))) as server:
        translate_all(server)
        load = http_load.run(server.url, LINES, ("en", "de"), clients=1, seconds=5.0, before=0.0, key=key)
    assert bool(load.latencies) == bool(key) and set(load.errors) == (set() if key else {"403"})


def test_clients_outlive_a_server_that_ends(run):
    with serving({"tiny": run}, ready=False) as server:
        server.end()
        server.thread.join(60)
        load = http_load.run(server.url, LINES, ("en", "de"), clients=2, seconds=0.5, before=0.0)
    assert not load.latencies and load.errors


def test_percentiles_are_latencies_that_occurred():
    latencies = [i / 1000 for i in range(100, 0, -1)]
    assert [percentile(latencies, p) for p in (1, 50, 99, 100)] == [1.0, 50.0, 99.0, 100.0]
    assert percentile([0.002], 99) == 2.0


def test_abuse_is_compared_with_the_time_before_it():
    """Not with the time after it, which it may have harmed as well."""
    phases = beside_quiet([{"p99_ms": 100.0}, {"p99_ms": 400.0}, {"p99_ms": 700.0}])
    assert [phase["p99_to_quiet"] for phase in phases] == [1.0, 4.0, 7.0]
