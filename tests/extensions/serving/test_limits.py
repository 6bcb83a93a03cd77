"""Keys, limits, the time of a request, and models that hang, fail or give wrong numbers."""

import asyncio
import concurrent.futures
import dataclasses
import json
import math
import threading

import numpy as np
import pytest
from helpers.processes import wait_for
from helpers.refusals import refused

from t2t_flax.errors import UserError
from t2t_flax.extensions.shared import attention_maps
from t2t_flax.extensions.shared.attention_maps import AttentionMaps

for package in ("fastapi", "python_multipart", "prometheus_client", "httpx"):
    pytest.importorskip(package, reason="needs the extra serve and httpx")
from helpers.http_server import as_kind, serving  # noqa: E402

from t2t_flax.extensions.serving import bodies, service  # noqa: E402
from t2t_flax.extensions.serving.languages import can_detect  # noqa: E402
from t2t_flax.extensions.serving.service import SMALL  # noqa: E402

PAIR = {"source": "en", "target": "de"}
BODY = PAIR | {"q": "It is late."}


def with_key(key):
    return {"Authorization": f"Bearer {key}"}


def test_requests_need_a_key_in_the_body_or_the_header(run):
    with serving({"tiny": run}, keys=["secret", "other"]) as server:
        for path, body in (
            ("/translate", BODY),
            ("/detect", {"q": "a"}),
            ("/api/translate", {"text": ["a"]}),
            ("/api/attention", {"source": "a", "target": "b"}),
        ):
            assert server.post(path, body).status_code == 403, path
            assert server.post(path, body, headers=with_key("secre")).status_code == 403
            assert server.post(path, body, headers=with_key("other")).status_code in (200, 501)
        for key, status in (("secret", 200), ("wrong", 403), ("", 403)):
            assert server.post("/translate", BODY | {"api_key": key}).status_code == status
            assert server.post("/translate", data=BODY | {"api_key": key}).status_code == status
        assert server.get("/frontend/settings").json()["keyRequired"] is True
        for path in ("/health", "/ready", "/languages", "/api/models", "/metrics", "/"):
            assert server.get(path).status_code == 200


def test_requests_of_a_client_at_the_same_time_are_limited(gated):
    with serving({"tiny": gated}, keys=["a", "b"], max_client_requests=1) as server:

        def status(key):
            return server.post("/translate", BODY, headers=with_key(key)).status_code

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            gated.hold()
            first = pool.submit(status, "a")
            gated.wait_until_busy()
            refused = server.post("/translate", BODY, headers=with_key("a"))
            other = pool.submit(status, "b")
            wait_for(
                lambda: server.models[0]._lanes[0].batcher.waiting == 1,
                "the other client's request",
            )
            gated.gate.set()
        assert refused.status_code == 429 and refused.headers["retry-after"]
        assert (first.result(), other.result(), status("a")) == (200, 200, 200)


def test_more_requests_than_may_wait_are_refused(gated):
    with (
        serving({"tiny": gated}, max_queue=1) as server,
        concurrent.futures.ThreadPoolExecutor(2) as pool,
    ):
        gated.hold()
        answers = [pool.submit(server.post, "/translate", BODY)]
        gated.wait_until_busy()
        answers.append(pool.submit(server.post, "/translate", BODY))
        wait_for(lambda: server.models[0]._lanes[0].batcher.waiting == 1, "full queue")
        refused = server.post("/translate", BODY)
        assert refused.status_code == 429 and refused.headers["retry-after"]
        gated.gate.set()
        assert [answer.result().status_code for answer in answers] == [200, 200]


def test_a_request_whose_time_is_up_leaves_the_queue(gated):
    with (
        serving({"tiny": gated}, timeout=0.5) as server,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        gated.hold()
        first = pool.submit(server.post, "/translate", BODY)
        gated.wait_until_busy()
        assert server.post("/translate", BODY).status_code == 504
        assert first.result().status_code == 504 and server.models[0]._lanes[0].batcher.waiting == 0
        gated.gate.set()


def asgi(server, *bodies, then, path="/translate", key=None):
    """The status of a POST whose body comes in parts; `then` is what the client does after them."""
    messages = [{"type": "http.request", "body": body, "more_body": True} for body in bodies]
    status = []

    async def receive():
        return messages.pop(0) if messages else await then()

    async def send(message):
        status.append(message.get("status"))

    headers = [(b"content-type", b"application/json"), (b"host", b"x")]
    headers += [(b"authorization", f"Bearer {key}".encode())] if key else []
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
    }
    asyncio.run(
        server.client.app(scope | {"headers": headers, "http_version": "1.1"}, receive, send)
    )
    return status[0]


def test_a_body_that_does_not_arrive_is_504_and_a_large_one_413(run):
    async def nothing():
        await asyncio.sleep(600)

    with serving({"tiny": run}, timeout=0.5, max_body_bytes=1000) as server:
        assert asgi(server, b'{"q":', then=nothing) == 504
        assert asgi(server, b'{"q":', b" " * 1000, then=nothing) == 413
        assert server.post("/api/translate", {"text": ["a" * 1000]}).status_code == 413


def test_a_client_that_goes_within_its_body_is_no_error_of_the_server(run):
    async def closed():
        return {"type": "http.disconnect"}

    with serving({"tiny": run}) as server:
        for path in ("/translate", "/api/translate"):
            assert asgi(server, b'{"q":', then=closed, path=path) == 499
            assert server.metric("requests_total", path=path, status="499") == 1


def test_a_key_in_the_header_is_checked_before_the_body_is_read(run):
    async def unread():
        raise AssertionError("the body is read")

    with serving({"tiny": run}, keys=["right"]) as server:
        for path, key in (
            ("/translate", "x"),
            ("/detect", "x"),
            ("/api/translate", "x"),
            ("/api/translate", None),
        ):
            assert asgi(server, then=unread, path=path, key=key) == 403


LARGE = PAIR | {"q": "x y " * 1000}


@pytest.fixture
def slow(run):
    """A server whose thread for large requests waits at `gate`; `begun` counts what it began."""
    with serving({"tiny": run}, timeout=3.0) as server:
        server.gate, server.begun, translate = (
            threading.Event(),
            threading.Semaphore(0),
            server.models[0].translate,
        )

        def wait(lines, *arguments):
            if len(lines[0]) > SMALL:
                server.begun.release()
                assert server.gate.wait(250)
            return translate(lines, *arguments)

        server.models[0].translate = wait
        yield server
        server.gate.set()


def gone():
    """A client that closes the connection after its body."""
    ended = []

    async def then():
        if not ended:
            ended.append(True)
            return {"type": "http.request", "body": b"", "more_body": False}
        return {"type": "http.disconnect"}

    return then


def test_large_requests_wait_for_each_other_within_their_time_and_for_nobody_else(slow):
    """The others too are large: bodies of our own API, texts of many lines."""
    short = [("/translate", BODY), ("/api/attention", {"source": "a", "target": "b"})]
    short += [("/detect", {"q": "It is late."})] if can_detect() else []
    large = [
        ("/translate", LARGE),
        ("/translate", BODY | {"q": "a\n" * 500}),
        ("/api/translate", {"text": "x" * SMALL}),
    ]
    large += [("/api/attention", {"source": ["x" * SMALL]})]
    assert {slow.post(*each).status_code for each in short} == {200}
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        first = pool.submit(slow.post, "/translate", LARGE)
        assert slow.begun.acquire(timeout=250)
        others = [pool.submit(slow.post, *each) for each in large]
        assert {slow.post(*each).status_code for each in short} == {200}
        assert asgi(slow, json.dumps(LARGE).encode(), then=gone()) == 499
        assert {answer.result().status_code for answer in (first, *others)} == {504}
        slow.gate.set()
        assert slow.post("/translate", LARGE).status_code == 400  # its line is too long
    assert slow.begun.acquire(blocking=False) and not slow.begun.acquire(blocking=False), (
        "the second never began"
    )


def test_more_large_requests_than_may_wait_are_refused(slow, monkeypatch):
    monkeypatch.setattr(service, "MOST_SLOW", 1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(slow.post, "/translate", LARGE)
        assert slow.begun.acquire(timeout=250)
        assert slow.post("/translate", LARGE).status_code == 429
        slow.gate.set()
        assert first.result().status_code == 400


def test_clients_without_a_key_keep_no_large_request_of_others_waiting(run, monkeypatch):
    gate, begun, fields = threading.Event(), threading.Event(), bodies._fields

    def wait(*form):
        begun.set()
        assert gate.wait(250)
        return fields(*form)

    monkeypatch.setattr(service, "MOST_SLOW", 1)
    monkeypatch.setattr(bodies, "_fields", wait)
    with (
        serving({"tiny": run}, keys=["right"]) as server,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        without = pool.submit(server.post, "/translate", data=LARGE)
        assert begun.wait(250)
        assert server.post("/translate", LARGE).status_code == 429
        # Its line is too long.
        assert server.post("/translate", LARGE, headers=with_key("right")).status_code == 400
        gate.set()
        assert without.result().status_code == 403


@pytest.mark.parametrize(
    "one, other, same",
    [
        ("198.51.100.1", "::ffff:198.51.100.1", True),
        ("198.51.100.1", "198.51.100.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:198.51.100.1", "::ffff:198.51.100.2", False),
        ("unix", "testclient", False),
    ],
)
def test_addresses_that_count_as_one_client(one, other, same):
    assert (service.client_of(one) == service.client_of(other)) is same


def test_a_client_that_goes_leaves_the_queue(gated):
    with serving({"tiny": gated}) as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
        gated.hold()
        first = pool.submit(server.post, "/translate", BODY)
        gated.wait_until_busy()
        assert asgi(server, json.dumps(BODY).encode(), then=gone()) == 499
        assert server.models[0]._lanes[0].batcher.waiting == 0
        gated.gate.set()
        assert first.result().status_code == 200


def test_pages_of_other_servers_are_kept_out(run):
    with serving(
        {"tiny": run}, ready=False, hosts=["testserver"], origins=["https://example.org"]
    ) as server:
        assert server.get("/health", headers={"Host": "evil.example"}).status_code == 400
        for origin, allowed in (
            ("https://example.org", "https://example.org"),
            ("https://evil.example", None),
        ):
            answer = server.get("/health", headers={"Origin": origin})
            assert answer.headers.get("access-control-allow-origin") == allowed


def test_requests_before_the_models_are_ready_are_503(gated):
    gated.hold()
    with serving({"tiny": gated}, ready=False) as server:
        gated.wait_until_busy()
        for answer in (
            server.get("/ready"),
            server.get("/api/models"),
            server.post("/translate", BODY),
        ):
            assert answer.status_code == 503 and answer.headers["retry-after"]
        assert server.get("/health").status_code == 200
        gated.gate.set()
        wait_for(lambda: server.get("/ready").status_code == 200, "ready server")


def test_short_lines_do_not_wait_for_what_is_rare(run):
    entered, go_on = threading.Event(), threading.Event()

    class Slow(type(run)):
        def translate(self, lines, **keys):
            if self.config.decode.n_best > 1:
                entered.set()
                assert go_on.wait(110)
            return super().translate(lines, **keys)

    with (
        serving({"tiny": as_kind(run, Slow)}) as server,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        rare = pool.submit(server.post, "/api/translate", {"text": ["It is late."], "n_best": 2})
        assert entered.wait(110)
        assert server.post("/translate", BODY).status_code == 200
        go_on.set()
        assert rare.result().status_code == 200


def test_rare_requests_are_computed_by_programs_of_few_sizes(run):
    sizes = []

    class Seen(type(run)):
        def translate(self, lines, **keys):
            if self.config.decode.n_best > 1:
                sizes.append(len(lines))
            return super().translate(lines, **keys)

    with serving({"tiny": as_kind(run, Seen)}, max_batch=64) as server:
        assert (
            server.post(
                "/translate", PAIR | {"q": ["It is late."] * 20, "alternatives": 1}
            ).status_code
            == 200
        )
    assert sum(sizes) >= 20 and max(sizes) <= 4


def with_fault(run, fault):
    """(the run, an event): translations call `fault(translate)` while the event is set."""
    begun = threading.Event()

    class Faulty(type(run)):
        def translate(self, lines, **keys):
            def translate():
                return super(Faulty, self).translate(lines, **keys)

            return fault(translate) if begun.is_set() else translate()

    return as_kind(run, Faulty), begun


def raising(translate):
    raise MemoryError("secret details")


def not_finite(translate):
    def wrong(hypothesis):
        return dataclasses.replace(hypothesis, score=math.nan)

    return [dataclasses.replace(t, hypotheses=tuple(map(wrong, t.hypotheses))) for t in translate()]


@pytest.mark.parametrize("fault", [raising, not_finite])
def test_health_fails_while_the_model_does_also_without_requests(run, fault):
    faulty, begun = with_fault(run, fault)
    with serving({"tiny": faulty}, health_limit=3.0) as server:
        begun.set()
        answer = server.post("/translate", BODY)
        assert answer.status_code == 500 and "secret" not in answer.text
        wait_for(
            lambda: server.get("/health").status_code == server.get("/ready").status_code == 503,
            "failing health",
        )
        begun.clear()
        wait_for(
            lambda: server.get("/health").status_code == server.get("/ready").status_code == 200,
            "health again",
        )
        assert server.post("/translate", BODY).status_code == 200


def test_health_fails_while_the_model_hangs(gated):
    with serving({"tiny": gated}, health_limit=1.0) as server:
        gated.hold()
        wait_for(lambda: server.get("/health").status_code == 503, "failing health")
        gated.gate.set()
        wait_for(lambda: server.get("/health").status_code == 200, "health again")


def test_error_of_one_request_is_its_own(run):
    class Failing(type(run)):
        def translate(self, lines, **keys):
            if "fail" in lines:
                raise MemoryError("secret details")
            return super().translate(lines, **keys)

    with (
        serving({"tiny": as_kind(run, Failing)}) as server,
        concurrent.futures.ThreadPoolExecutor(2) as pool,
    ):
        bodies = [BODY | {"q": "fail"}, BODY]
        answers = list(pool.map(lambda body: server.post("/translate", body), bodies))
        assert [answer.status_code for answer in answers] == [500, 200]
        assert server.get("/health").status_code == 200


@pytest.mark.parametrize("error", [UserError("the checkpoint is damaged"), SystemExit()])
def test_model_that_cannot_be_restored_ends_the_server(run, error):
    def fail(translate):
        raise error

    faulty, begun = with_fault(run, fail)
    begun.set()
    with serving({"tiny": faulty}, ready=False) as server:
        assert server.failed.wait(250) and server.models[0].error is error
        assert server.get("/ready").status_code == server.get("/health").status_code == 503


def test_model_with_numbers_that_are_not_finite_ends_the_server(run):
    faulty, begun = with_fault(run, not_finite)
    begun.set()
    with serving({"tiny": faulty}, ready=False) as server:
        assert server.failed.wait(250)
        with refused(str(run.workdir), "--step"):
            raise server.models[0].error


def test_attention_that_is_not_finite_is_an_error(server, monkeypatch):
    maps = AttentionMaps(*[np.full((1, 1, 1, 1), np.nan)] * 3, ("a",), ("b",))
    monkeypatch.setattr(attention_maps, "attend", lambda *_: maps)
    answer = server.post("/api/attention", {"source": "It is late.", "target": "Es"})
    assert answer.status_code == 500 and "not finite" in answer.json()["error"]
