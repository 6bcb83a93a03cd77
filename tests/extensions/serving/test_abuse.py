"""Clients that harm the server: what each may cost, and that others are answered."""

import contextlib
import json
import logging
import os
import re
import socket
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

for package in ("fastapi", "uvicorn", "prometheus_client", "httpx"):
    pytest.importorskip(package, reason="needs the extra serve and httpx")
from fastapi import Response  # noqa: E402
from helpers.http_server import serving, wait_for  # noqa: E402

from benchmarks import http_abuse  # noqa: E402
from benchmarks.serving import resident_megabytes  # noqa: E402
from t2t_flax.data.sources import toy  # noqa: E402
from t2t_flax.extensions.serving import server as server_lib  # noqa: E402
from t2t_flax.extensions.serving.model_api import _attention_json  # noqa: E402
from t2t_flax.extensions.serving.schemas import LibreTranslateRequest, TranslateRequest, parse_body  # noqa: E402
from t2t_flax.extensions.serving.server import hosts_of, listen  # noqa: E402
from t2t_flax.extensions.serving.service import Limits  # noqa: E402
from t2t_flax.extensions.serving.text import RequestError  # noqa: E402

BODY = {"q": "It is late.", "source": "en", "target": "de"}
MANY = 40_000


def address(server) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


@pytest.fixture(scope="module")
def server(run):
    with serving({"tiny": run}) as server:
        yield server


@pytest.mark.parametrize(
    "body, shape",
    [
        (b'{"q":[' + b"1," * MANY + b'1],"source":"en","target":"de"}', LibreTranslateRequest),
        (b'{"text":[' + b"{}," * MANY + b"{}]}", TranslateRequest),
        (json.dumps({f"field {i}": i for i in range(MANY)}).encode(), TranslateRequest),
        (b'{"text":' + b"1" * MANY + b"}", TranslateRequest),
        (b"[" * MANY, TranslateRequest),
    ],
)
def test_wrong_body_costs_no_more_than_a_right_one_of_its_size(body, shape):
    tracemalloc.start()
    try:
        with pytest.raises(RequestError):
            parse_body(body, "application/json", shape)
        assert tracemalloc.get_traced_memory()[1] < 40 * len(body)
    finally:
        tracemalloc.stop()


def test_dropped_upload_is_499_without_a_traceback(server, caplog):
    def count(status):
        found = re.search(rf'total{{path="/translate",status="{status}"}} (\S+)', server.get("/metrics").text)
        return float(found[1]) if found else 0.0

    before = count(499)
    with caplog.at_level(logging.WARNING), socket.create_connection(address(server)) as connection:
        head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        connection.sendall(head)
        connection.close()
        wait_for(lambda: count(499) == before + 1, "request that is counted as 499")
    assert count(500) == 0 and "Traceback" not in caplog.text


def test_idle_connections_make_room(run):
    """More of them than there may be, some within the head of a request; those that wait longest are closed."""
    with serving({"tiny": run}, max_connections=8) as server, contextlib.ExitStack() as stack:
        idle = []
        for number in range(30):
            idle.append(stack.enter_context(socket.create_connection(address(server), timeout=60)))
            idle[-1].sendall(b"GET /health HTTP/1.1\r\nX: " if number % 2 else b"")
            if number % 10 == 9:
                assert server.get("/health").status_code == 200
                assert server.post("/translate", BODY).status_code == 200
        with contextlib.suppress(ConnectionResetError):
            assert idle[0].recv(1) == b""
        assert len(server.server.server_state.connections) <= 8


def test_head_has_a_time_limit(run, monkeypatch):
    monkeypatch.setattr(server_lib, "HEAD_SECONDS", 0.3)
    with serving({"tiny": run}, ready=False) as server, socket.create_connection(address(server), timeout=60) as slow:
        with contextlib.suppress(ConnectionError):
            slow.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
            assert slow.recv(1) == b""


def test_answer_that_is_not_read_is_dropped(run):
    with serving({"tiny": run}, limits=Limits(timeout=0.3)) as server, socket.socket() as client:
        server.server.config.app.add_api_route("/large", lambda: Response(bytes(30_000_000)))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(address(server))
        client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(8) == b"HTTP/1.1"
        wait_for(lambda: not server.server.server_state.connections, "end of the connection")


def test_pages_of_other_servers_are_kept_out(run):
    with serving(
        {"tiny": run}, hosts=["localhost", "127.0.0.1"], origins=["https://example.org"], ready=False
    ) as server:
        assert server.get("/health").status_code == 200
        assert server.get("/health", headers={"Host": "localhost:1"}).status_code == 200
        assert server.get("/health", headers={"Host": "evil.example"}).status_code == 400
        for origin, allowed in (("https://example.org", "https://example.org"), ("https://evil.example", None)):
            answer = server.get("/health", headers={"Origin": origin})
            assert answer.headers.get("access-control-allow-origin") == allowed


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "text/plain; application/json", "application/x-www-form-urlencoded"]
)
@pytest.mark.parametrize("path", ["/translate", "/api/translate"])
def test_json_of_another_type_is_415(server, path, kind):
    """Which a page of another server may send without asking; forms are LibreTranslate's."""
    body = json.dumps(BODY if path == "/translate" else {"text": "a"}).encode()
    answer = server.post(path, content=body, headers={"Content-Type": kind} if kind else {})
    form = path == "/translate" and kind == "application/x-www-form-urlencoded"
    assert answer.status_code == (400 if form else 415) and answer.json()["error"]


@pytest.mark.parametrize("path", ["/", "/health", "/docs", "/languages", "/page/page.css", "/nothing"])
def test_head_is_get_without_a_body(server, path):
    import httpx

    got, head = server.get(path), httpx.head(server.url + path, timeout=60)
    assert head.status_code == got.status_code and head.content == b""
    assert head.headers["content-length"] == str(len(got.content))


def test_addresses_that_are_listened_on():
    with listen("127.0.0.1", 0) as here:
        assert {"localhost", "127.0.0.1"} <= set(hosts_of(here))
    with listen("0.0.0.0", 0) as anywhere:
        assert hosts_of(anywhere) == ["*"]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_all_addresses_are_those_of_ipv4_too():
    with listen("::", 0) as listening:
        socket.create_connection(("127.0.0.1", listening.getsockname()[1]), timeout=60).close()
        assert hosts_of(listening) == ["*"]


def test_weights_take_at_most_four_bytes():
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.full(64, 0.1), size=(2, 4, 64)).astype(np.float32)
    maps = SimpleNamespace(
        cross=weights, encoder=weights, decoder=weights, source_tokens=("x",) * 64, target_tokens=("y",) * 64
    )
    text = _attention_json("a", maps)
    answer = json.loads(text)
    assert len(text) < 4 * 3 * weights.size
    np.testing.assert_allclose(np.array(answer["cross"]) / 1000, weights, atol=0.0005 + 1e-9)


@pytest.mark.slow
def test_others_are_answered_beside_each_kind_of_abuse(run):
    """By a server with fewer connections than those that hang; its memory does not grow with what is sent."""
    import httpx

    lines = [source for source, _ in toy.pairs("test", 6)]
    with serving({"tiny": run}, max_connections=64) as server:
        before = None

        def translated(line):
            for _ in range(
                10
            ):  # of many connections at once, one of these may have to make room before its request is read
                with contextlib.suppress(httpx.NetworkError, httpx.RemoteProtocolError):
                    return server.post("/translate", BODY | {"q": line})
            raise AssertionError("no connection lasts until an answer")

        for kind in ("", *http_abuse.KINDS):
            with http_abuse.abuse(server.url, kind), ThreadPoolExecutor(4) as clients:
                time.sleep(1.5)
                for answer in clients.map(translated, 4 * lines):
                    assert answer.status_code == 200, (kind, answer.text)
            memory = resident_megabytes(os.getpid())
            before = before or memory
            assert memory < before + 1000
        assert server.get("/health").status_code == server.get("/ready").status_code == 200
