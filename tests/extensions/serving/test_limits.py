"""A server under pressure: full queues, large and slow bodies, time limits, clients that leave, the end in order."""

import asyncio
import concurrent.futures
import contextlib
import copy
import dataclasses
import re
import signal
import socket
import threading

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("prometheus_client", reason="needs the extra serve")
pytest.importorskip("httpx", reason="the tests' HTTP client")
import httpx  # noqa: E402
from fastapi import Request, Response  # noqa: E402
from helpers.http_server import serving, wait_for  # noqa: E402

from t2t_flax.data.tokenizers import TokenizerPair  # noqa: E402
from t2t_flax.errors import UserError  # noqa: E402
from t2t_flax.extensions.serving.batching import Job  # noqa: E402
from t2t_flax.extensions.serving.model import ServedModel  # noqa: E402
from t2t_flax.extensions.serving.schemas import TranslateRequest  # noqa: E402
from t2t_flax.extensions.serving.service import Limits, Service  # noqa: E402
from t2t_flax.extensions.serving.text import RequestError  # noqa: E402

FORM = "Content-Type: application/x-www-form-urlencoded\n"
JSON_HEADERS = [(b"content-type", b"application/json")]
BODY = {"q": "It is late.", "source": "en", "target": "de"}


def waiting(server):
    return float(re.search(r't2t_flax_queue_requests{model="tiny"} (\S+)', server.get("/metrics").text)[1])


def address(server) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


def raw(server, head: str, *parts: bytes) -> socket.socket:
    """A connection that has sent the beginning of a request."""
    connection = socket.create_connection(address(server), timeout=150)
    connection.sendall(head.replace("\n", "\r\n").encode() + b"".join(parts))
    return connection


def test_full_queue_is_429_and_all_others_are_answered(gated):
    with serving({"tiny": gated}, max_queue=2, wait=0.0) as server, concurrent.futures.ThreadPoolExecutor(3) as pool:
        gated.hold()
        first = pool.submit(server.post, "/translate", BODY)
        gated.wait_until_busy()
        others = [pool.submit(server.post, "/translate", BODY) for _ in range(2)]
        wait_for(lambda: waiting(server) == 2, "full queue")
        refused = server.post("/translate", BODY)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1 and refused.json()["error"]
        assert server.get("/health").status_code == server.get("/ready").status_code == 200
        gated.gate.set()
        assert len({each.result().text for each in [first, *others]}) == 1
        assert all(each.result().status_code == 200 for each in [first, *others])


def test_time_limit_is_504_and_the_request_leaves_the_queue(gated):
    with serving({"tiny": gated}, limits=Limits(timeout=0.2), wait=0.0) as server:
        gated.hold()
        # In one piece: of two, the second may take longer than the time limit.
        body = b"q=a&source=en&target=de"
        head = f"POST /translate HTTP/1.1\nHost: x\nConnection: close\n{FORM}Content-Length: {len(body)}\n\n"
        for late in [raw(server, head, body) for _ in range(2)]:
            with late, late.makefile("rb") as answer:
                text = answer.read()
            assert text.startswith(b"HTTP/1.1 504") and b"no result within 0.2 s" in text
        assert waiting(server) == 0
        gated.gate.set()


def test_request_of_a_client_that_has_gone_leaves_the_queue(gated):
    with serving({"tiny": gated}, wait=0.0) as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
        gated.hold()
        first = pool.submit(server.post, "/translate", BODY)
        gated.wait_until_busy()
        body = b"q=a&source=en&target=de"
        head = f"POST /translate HTTP/1.1\nHost: x\n{FORM}Content-Length: {len(body)}\n\n"
        connection = raw(server, head, body)
        wait_for(lambda: waiting(server) == 1, "second request in the queue")
        connection.close()
        wait_for(lambda: waiting(server) == 0, "empty queue")
        gated.gate.set()
        assert first.result().status_code == 200
        assert 'requests_total{path="/translate",status="499"} 1.0' in server.get("/metrics").text


def test_bodies_are_limited_before_they_are_read_to_the_end(run):
    with serving({"tiny": run}, limits=Limits(max_body_bytes=100)) as server:
        answer = server.post("/translate", BODY | {"q": "x" * 100})
        assert answer.status_code == 413 and answer.json()["error"] == "the body has more than 100 bytes."
        announced = raw(server, "POST /translate HTTP/1.1\nHost: x\nContent-Length: 1000000000\n\n")
        assert announced.recv(100).startswith(b"HTTP/1.1 413")
        endless = raw(
            server, "POST /translate HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n", b"40\r\n" + b"x" * 64 + b"\r\n"
        )
        endless.sendall(b"40\r\n" + b"x" * 64 + b"\r\n")
        assert endless.recv(100).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "path, body, field",
    [
        ("/translate", {"q": ["a", "", ""], "source": "en", "target": "de"}, "q"),
        ("/translate", {"q": "a\n\n", "source": "en", "target": "de"}, "q"),
        ("/api/translate", {"text": ["a", "", ""]}, "text"),
        ("/api/translate", {"text": "a", "prefix": ["", "", ""]}, "prefix"),
    ],
)
def test_lines_are_limited(two_lines, path, body, field):
    answer = two_lines.post(path, body)
    assert answer.status_code == 400 and answer.json()["error"] == f"{field} has 3 lines: at most 2 are allowed."


@pytest.fixture(scope="module")
def two_lines(run):
    with serving({"tiny": run}, limits=Limits(max_lines=2)) as server:
        yield server


def test_body_that_does_not_come_is_408(run):
    with serving({"tiny": run}, limits=Limits(timeout=0.2)) as server:
        slow = raw(server, "POST /translate HTTP/1.1\nHost: x\nContent-Length: 10\n\n", b"{")
        assert slow.recv(100).startswith(b"HTTP/1.1 408")


class FakeClock(asyncio.SelectorEventLoop):
    """A loop whose time does not pass by itself."""

    now = 0.0

    def time(self):
        return self.now


def test_waiting_has_what_reading_left_of_the_time(run):
    """A body that takes 7 of 10 seconds, and a result that never comes: a second passes at each turn of the loop."""

    async def ask():
        arrived = False

        async def receive():
            nonlocal arrived
            if not arrived:
                arrived, loop.now = True, loop.now + 7
                return {"type": "http.request", "body": b'{"text": "a"}', "more_body": False}
            while True:
                loop.now += 1
                await asyncio.sleep(0)

        request = Request({"type": "http", "method": "POST", "headers": JSON_HEADERS}, receive)
        service = Service([], Limits(timeout=10))
        await service.read(request, TranslateRequest)
        with pytest.raises(RequestError, match="no result within 10 s"):
            await service.wait(request, Job("key", ["a"], arrived=0.0))

    with contextlib.closing(FakeClock()) as loop:
        loop.run_until_complete(ask())
        assert 10 <= loop.now < 13


def test_counting_tokens_holds_up_no_other_request(run):
    """The tokenizer of the first request returns only once another request was answered."""
    entered, go_on = threading.Event(), threading.Event()

    class Slow(type(run.tokenizers.source)):
        def encode(self, text):
            if text == "slow":
                entered.set()
                assert go_on.wait(110)
            return super().encode(text)

    source = copy.copy(run.tokenizers.source)
    source.__class__ = Slow
    slow = dataclasses.replace(run, tokenizers=TokenizerPair(source, run.tokenizers.target))
    with serving({"tiny": slow}) as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.post, "/api/translate", {"text": "slow"})
        assert entered.wait(110)
        try:
            assert httpx.get(f"{server.url}/health", timeout=100).status_code == 200
        finally:
            go_on.set()
        assert first.result().status_code == 200


def test_only_threads_of_a_model_make_runs_each_its_own(run, monkeypatch):
    callers, made = {}, ServedModel._loaded

    def loaded(model, n_best):
        loaded = made(model, n_best)
        callers.setdefault(threading.current_thread().name, {})[n_best] = id(loaded)
        return loaded

    monkeypatch.setattr(ServedModel, "_loaded", loaded)
    with serving({"tiny": run}) as server:
        for path, body in (("translate", {"text": "a", "n_best": 2}), ("attention", {"source": "a", "target": "b"})):
            assert server.post(f"/api/{path}", body).status_code == 200
        assert server.get("/api/models").status_code == 200
    assert callers.keys() == {"tiny", "tiny-2"} and callers["tiny-2"].keys() == {1, 3}
    assert len({id for runs in callers.values() for id in runs.values()}) == sum(map(len, callers.values()))


def test_requests_before_the_models_are_ready_are_503(gated):
    gated.hold()
    with serving({"tiny": gated}, ready=False) as server:
        gated.wait_until_busy()
        for answer in (server.get("/ready"), server.get("/api/models"), server.post("/translate", BODY)):
            assert answer.status_code == 503 and answer.headers["retry-after"]
        assert server.get("/health").status_code == 200
        gated.gate.set()
        wait_for(lambda: server.get("/ready").status_code == 200, "ready server")


def test_end_answers_what_is_in_the_queue_and_takes_no_more(gated):
    with serving({"tiny": gated}, wait=0.0) as server, concurrent.futures.ThreadPoolExecutor(3) as pool:
        gated.hold()
        requests = [pool.submit(server.post, "/translate", BODY)]
        gated.wait_until_busy()
        requests += [pool.submit(server.post, "/translate", BODY) for _ in range(2)]
        wait_for(lambda: waiting(server) == 2, "queue of two")
        server.end()

        def refused() -> bool:
            try:
                raw(server, "").close()
            except ConnectionRefusedError:
                return True
            return False

        wait_for(refused, "closed port")
        gated.gate.set()
        assert [each.result().status_code for each in requests] == [200, 200, 200]
        server.thread.join(150)
        assert not server.thread.is_alive()


@pytest.fixture
def unread(run, request):
    """A server, and a client that reads only the beginning of a large answer."""
    with serving({"tiny": run}, limits=Limits(timeout=request.param)) as server, socket.socket() as client:
        server.server.config.app.add_api_route("/large", lambda: Response(bytes(30_000_000)))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(address(server))
        client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(8) == b"HTTP/1.1"
        yield server


@pytest.mark.parametrize("unread", [0.2], indirect=True)
def test_end_does_not_wait_for_a_client_that_does_not_read(unread):
    unread.end()
    unread.thread.join(150)
    assert not unread.thread.is_alive()


@pytest.mark.parametrize("unread", [600], indirect=True)
def test_second_ctrl_c_does_not_wait_for_clients(unread):
    for _ in range(2):
        unread.server.handle_exit(signal.SIGINT, None)
    unread.thread.join(150)
    assert not unread.thread.is_alive()


def test_error_of_the_model_is_500_without_details_and_the_next_request_works(run):
    class Failing(type(run)):
        def translate(self, lines, **keys):
            if "fail" in lines[0]:
                raise MemoryError("secret details")
            return super().translate(lines, **keys)

    failing = Failing(**{field.name: getattr(run, field.name) for field in dataclasses.fields(run)})
    with serving({"tiny": failing}) as server:
        answer = server.post("/translate", BODY | {"q": "fail"})
        assert answer.status_code == 500 and "secret" not in answer.text and answer.json()["error"]
        assert server.post("/translate", BODY).status_code == 200


def test_model_that_cannot_be_restored_stops_the_server(run):
    class Broken(type(run)):
        def translate(self, lines, **keys):
            raise UserError("the checkpoint is damaged")

    broken = Broken(**{field.name: getattr(run, field.name) for field in dataclasses.fields(run)})
    with serving({"tiny": broken}, ready=False) as server:
        assert server.failed.wait(250) and "damaged" in str(server.models[0].error)
        assert server.get("/ready").status_code == 503
