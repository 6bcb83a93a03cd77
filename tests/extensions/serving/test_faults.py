"""A model that hangs, fails or gives wrong numbers, and the end of a server that has one."""

import dataclasses
import math
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

for package in ("fastapi", "uvicorn", "prometheus_client", "httpx"):
    pytest.importorskip(package, reason="needs the extra serve and httpx")
import httpx  # noqa: E402
from helpers.http_server import serving, wait_for  # noqa: E402
from helpers.processes import environment, free_port  # noqa: E402

from t2t_flax.extensions.serving.healthcheck import is_well  # noqa: E402
from t2t_flax.extensions.shared import attention_maps  # noqa: E402

ROOT = Path(__file__).parents[3]
BODY = {"q": "It is late.", "source": "en", "target": "de"}


def with_fault(run, fault):
    """(the run, an event): translations call `fault(translate)` while the event is set."""
    begun = threading.Event()

    class Faulty(type(run)):
        def translate(self, lines, **keys):
            def translate():
                return super(Faulty, self).translate(lines, **keys)

            return fault(translate) if begun.is_set() else translate()

    return Faulty(**{field.name: getattr(run, field.name) for field in dataclasses.fields(run)}), begun


def raising(translate):
    raise RuntimeError("injected")


def not_finite(translate):
    def wrong(hypothesis):
        return dataclasses.replace(hypothesis, score=math.nan)

    return [dataclasses.replace(t, hypotheses=tuple(map(wrong, t.hypotheses))) for t in translate()]


def healthy(server) -> bool:
    return server.get("/health").status_code == server.get("/ready").status_code == 200 and is_well(server.url)


@pytest.mark.parametrize("fault", [raising, not_finite])
def test_health_fails_while_the_model_does_also_without_requests(run, fault):
    faulty, begun = with_fault(run, fault)
    with serving({"tiny": faulty}, health_limit=3.0) as server:
        wait_for(lambda: healthy(server), "health")
        begun.set()
        wait_for(lambda: server.get("/health").json().get("error", "").startswith("tiny: it fails: "), "failing health")
        assert server.get("/health").status_code == server.get("/ready").status_code == 503
        assert not is_well(server.url)
        begun.clear()
        wait_for(lambda: healthy(server), "health again")


def test_health_fails_while_the_model_hangs(gated):
    with serving({"tiny": gated}, health_limit=3.0) as server:
        wait_for(lambda: healthy(server), "health")
        gated.hold()
        wait_for(lambda: server.get("/health").status_code == 503, "failing health")
        assert "no result for" in server.get("/ready").json()["error"]
        gated.gate.set()
        wait_for(lambda: healthy(server), "health again")


def test_container_without_a_server_is_well():
    assert is_well(f"http://127.0.0.1:{free_port()}")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not is_well(f"http://127.0.0.1:{silent.getsockname()[1]}", seconds=0.2)


def test_numbers_that_are_not_finite_are_no_translation(run):
    faulty, begun = with_fault(run, not_finite)
    with serving({"tiny": faulty}) as server:
        begun.set()
        for path, body in (("/translate", BODY), ("/api/translate", {"text": "a", "n_best": 2})):
            answer = server.post(path, body)
            assert answer.status_code == 500 and "not finite" in answer.json()["error"]


def test_scores_and_attention_that_are_not_finite_are_500(run, monkeypatch):
    class Wrong(type(run)):
        def score(self, pairs, **keys):
            return [dataclasses.replace(s, token_log_probs=(math.nan,)) for s in super().score(pairs, **keys)]

    def attend(*arguments, **keys):
        maps = maps_of(*arguments, **keys)
        return dataclasses.replace(maps, cross=maps.cross * math.nan)

    maps_of = attention_maps.attend
    monkeypatch.setattr(attention_maps, "attend", attend)
    wrong = Wrong(**{field.name: getattr(run, field.name) for field in dataclasses.fields(run)})
    with serving({"tiny": wrong}) as server:
        for path in ("score", "attention"):
            answer = server.post(f"/api/{path}", {"source": "a", "target": "b"})
            assert answer.status_code == 500 and "not finite" in answer.json()["error"]


def test_model_that_is_wrong_from_the_start_is_not_served(run):
    faulty, begun = with_fault(run, not_finite)
    begun.set()
    with serving({"tiny": faulty}, ready=False) as server:
        assert server.failed.wait(250) and "not finite" in str(server.models[0].error)
        assert server.get("/ready").status_code == server.get("/health").status_code == 503


def test_exception_that_leaves_a_thread_ends_the_server(run):
    def leave(translate):
        raise SystemExit

    faulty, begun = with_fault(run, leave)
    with serving({"tiny": faulty}) as server:
        begun.set()
        assert server.post("/translate", BODY).status_code == 503
        assert server.failed.wait(250) and isinstance(server.models[0].error, SystemExit)
        assert server.get("/health").status_code == 503


def test_short_lines_do_not_wait_for_what_is_rare(run):
    """A request with a prefix does not return until a short one, sent later, is answered: so does one that is compiled."""
    entered, go_on = threading.Event(), threading.Event()

    class Slow(type(run)):
        def translate(self, lines, *, prefixes=None, **keys):
            if prefixes:
                entered.set()
                assert go_on.wait(110)
            return super().translate(lines, prefixes=prefixes, **keys)

    slow = Slow(**{field.name: getattr(run, field.name) for field in dataclasses.fields(run)})
    with serving({"tiny": slow}) as server:
        rare = []
        body = {"text": "It is late.", "prefix": "Es"}
        thread = threading.Thread(target=lambda: rare.append(server.post("/api/translate", body)))
        thread.start()
        try:
            assert entered.wait(110)
            for line in ("It is late.", "It is late. " * 5):
                assert httpx.post(f"{server.url}/translate", json=BODY | {"q": line}, timeout=100).status_code == 200
        finally:
            go_on.set()
            thread.join(150)
        assert rare[0].status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("fault, code", [("hanging", 1), ("dead", 1)])
def test_process_ends_in_time_with_a_model_that_does_not(workdir, tmp_path, fault, code):
    """At SIGTERM where a batch hangs, by itself where a thread has ended."""
    words = [fault, str(tmp_path / "begin"), f"--workdir={workdir}", "--port=0", "--timeout=5", "--health-limit=3"]
    command = [sys.executable, "-m", "benchmarks.engines.faulty_server", *words, "--max-batch=1"]
    with subprocess.Popen(
        command, env=environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            url = re.fullmatch(r"listening on (http://\S+)\n", server.stdout.readline())[1]
            wait_for(lambda: httpx.get(f"{url}/ready", timeout=150).status_code == 200, "ready server", 400)
            (tmp_path / "begin").touch()
            if fault == "hanging":
                wait_for(lambda: httpx.get(f"{url}/health", timeout=150).status_code == 503, "failing health")
                server.send_signal(signal.SIGTERM)
            assert server.wait(250) == code
        finally:
            server.kill()
