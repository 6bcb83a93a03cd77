"""A server that is left running: keys, limits, ids, the calls of LibreTranslate's clients and page, paragraphs,
the end behind a load balancer.
"""

import concurrent.futures
import dataclasses
import json
import signal
import urllib.error

import pytest

from t2t_flax.data.sources import toy
from t2t_flax.evaluation.restore import load
from t2t_flax.registry import ANALYSES

for package in ("fastapi", "uvicorn", "prometheus_client", "httpx"):
    pytest.importorskip(package, reason="needs the extra serve and httpx")
from helpers.http_server import serving, wait_for, with_two  # noqa: E402

from t2t_flax.extensions.serving.access import Access, Allowance, Keys  # noqa: E402
from t2t_flax.extensions.serving.languages import can_detect  # noqa: E402
from t2t_flax.extensions.serving.schemas import LibreTranslateRequest, parse_body  # noqa: E402
from t2t_flax.extensions.serving.service import Limits  # noqa: E402
from t2t_flax.extensions.serving.text import RequestError  # noqa: E402

LINES = [source for source, _ in toy.pairs("test", 6)]
BODY = {"q": LINES[0], "source": "en", "target": "de"}


@pytest.fixture(scope="module")
def entries():
    return []


@pytest.fixture(scope="module")
def server(run, entries):
    """With keys, and the origin of another page."""
    access = Access(Keys(["secret", "other"]))
    with serving(
        {"tiny": run}, access=access, access_log=entries.append, origins=["https://page.example"], split=False
    ) as server:
        yield server


def translated(run, *lines):
    return [translation.text for translation in run.translate(lines)]


def login(key):
    return {"Authorization": f"Bearer {key}"}


def test_requests_need_a_key_in_the_body_or_the_header(server):
    for path, body in (
        ("/translate", BODY),
        ("/detect", {"q": "a"}),
        ("/api/translate", {"text": "a"}),
        ("/api/score", {"source": "a", "target": "b"}),
        ("/api/attention", {"source": "a", "target": "b"}),
    ):
        assert server.post(path, body).status_code == 403, path
        assert server.post(path, body, headers=login("secre")).status_code == 403
        allowed = server.post(path, body, headers=login("other"))
        assert allowed.status_code == 200 or path == "/detect" and not can_detect(), allowed.text
    for key, status in (("secret", 200), ("wrong", 403), ("", 403), (None, 403)):
        assert server.post("/translate", BODY | {"api_key": key}).status_code == status
        assert server.post("/translate", data=BODY | {"api_key": key or ""}).status_code == status
    for path in ("/health", "/ready", "/languages", "/frontend/settings", "/api/models", "/metrics", "/docs", "/"):
        assert server.get(path).status_code == 200


def test_libretranslates_own_client(server, run):
    """`libretranslatepy`, which users have in their programs."""
    client_of = pytest.importorskip("libretranslatepy").LibreTranslateAPI
    client = client_of(server.url, "secret")
    assert [(each["code"], each["name"]) for each in client.languages()] == [("de", "German"), ("en", "English")]
    assert client.translate(LINES[0], "en", "de") == translated(run, LINES[0])[0]
    assert client.translate(f"{LINES[1]}\n\n{LINES[2]}", "en-US", "DE") == "\n\n".join(translated(run, *LINES[1:3]))
    if can_detect():
        first, second = client.detect("Das Wetter ist heute sehr schön.")
        assert (first["language"], second["language"]) == ("de", "en") and first["confidence"] > 90
    with pytest.raises(urllib.error.HTTPError) as refused:
        client_of(server.url, "wrong").translate("a")
    assert refused.value.code == 403 and json.loads(refused.value.read())["error"]


def test_the_calls_of_libretranslates_page(server, run):
    """Settings and languages first; a choice must be among the languages and their targets; forms in parts."""
    settings, languages = server.get("/frontend/settings").json(), server.get("/languages").json()
    assert settings["keyRequired"] is settings["apiKeys"] is True
    assert settings["charLimit"] > 0 and settings["frontendTimeout"] > 0
    assert settings["suggestions"] is settings["filesTranslation"] is False and settings["supportedFilesFormat"] == []
    assert settings["language"]["source"] == {"code": "auto", "name": "Detect language"}
    assert settings["language"]["target"] == {"code": "de", "name": "German"}
    codes = [each["code"] for each in languages]
    assert all(target in codes for each in languages for target in each["targets"])
    fields = {"q": f"{LINES[0]}\r\n{LINES[1]}", "source": "auto", "target": "de", "format": "text", "api_key": "secret"}
    answer = server.post("/translate", files={name: (None, value) for name, value in fields.items()})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["translatedText"] == "\r\n".join(translated(run, *LINES[:2]))
    found = answer.json()["detectedLanguage"]
    assert found["language"] == "en" and (found["confidence"] > 20 or not can_detect())
    refused = server.post("/translate", files={"q": (None, "a"), "source": (None, "en"), "target": (None, "de")})
    assert refused.status_code == 403 and "API key" in refused.json()["error"]


@pytest.mark.parametrize("body", [b"", b"--b\r\n\r\na\r\n", b"--other\r\n\r\n\r\n--other--", b"--b--", b"\xff" * 9])
@pytest.mark.parametrize(
    "kind", ["multipart/form-data; boundary=b", "multipart/form-data", 'multipart/form-data; boundary="']
)
def test_a_form_in_parts_that_is_wrong_is_400(server, body, kind):
    answer = server.post("/translate", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 400, answer.text


def test_a_form_in_parts_within_parts_is_text():
    """It is not parsed: thousands within each other would take seconds."""

    def parsed(parts):
        return parse_body(parts, "multipart/form-data; boundary=0", LibreTranslateRequest, form=True)

    kind = b"Content-Type: multipart/mixed; boundary=1\r\n"
    fields = {b"q": b"--1\r\n\r\nA\r\n--1--", b"source": b"en", b"target": b"de"}
    body = b"".join(
        b'--0\r\nContent-Disposition: form-data; name="%s"\r\n%s\r\n%s\r\n' % (name, kind, value)
        for name, value in fields.items()
    )
    assert parsed(body + b"--0--\r\n").q == "--1\r\n\r\nA\r\n--1--"
    nested = b"".join(b"--%d\r\nContent-Type: multipart/mixed; boundary=%d\r\n\r\n" % (i, i + 1) for i in range(2000))
    for wrong in (nested, body.replace(kind, b";" * 2000) + b"--0--", b"--0\r\n\r\n\r\n" * 2001 + b"--0--"):
        with pytest.raises(RequestError, match="not a form"):
            parsed(wrong)


def test_each_answer_has_an_id_which_is_in_the_log_without_the_text(server, entries):
    entries.clear()
    given = {"X-Request-Id": "abc-1", **login("secret")}
    answers = [
        server.post("/translate", BODY, headers=given),
        server.post("/translate", {}, headers={"X-Request-Id": "not plain"}),
        server.get("/nowhere"),
    ]
    wait_for(lambda: len(entries) == 3, "entries of three requests")
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert ids[0] == "abc-1" and len(set(ids)) == 3 and "not plain" not in ids
    assert [entry["id"] for entry in entries] == ids
    assert [entry["status"] for entry in entries] == [200, 400, 404]
    assert [entry["client"] for entry in entries] == ["key 1", "127.0.0.1", "127.0.0.1"]
    assert entries[0]["characters"] == len(LINES[0]) and entries[0]["path"] == "/translate"
    assert LINES[0] not in json.dumps(entries) and "secret" not in json.dumps(entries)


def test_an_error_of_the_server_has_its_id_in_both_logs(server, entries, caplog):
    @server.server.config.app.get("/broken")
    def broken():
        raise ZeroDivisionError

    entries.clear()
    answer = server.get("/broken", headers={"X-Request-Id": "abc-2"})
    assert answer.status_code == 500 and answer.headers["x-request-id"] == "abc-2" and answer.json()["error"]
    wait_for(lambda: entries, "entry")
    assert "request abc-2 failed" in caplog.text and entries[0]["status"] == 500


def test_pages_of_other_origins_may_send_keys_and_read_ids(server):
    head = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    asked = {"Access-Control-Request-Headers": "authorization, content-type, x-request-id"}
    import httpx

    answer = httpx.options(f"{server.url}/translate", headers=head | asked)
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "https://page.example"
    answer = server.post("/translate", BODY, headers={"Origin": "https://page.example", **login("secret")})
    assert "x-request-id" in answer.headers["access-control-expose-headers"].lower()
    answer = server.post("/translate", BODY, headers={"Origin": "https://elsewhere.example", **login("secret")})
    assert "access-control-allow-origin" not in answer.headers


def test_limits_are_those_of_each_client(run):
    """A key is one client wherever it is used; what is refused costs nothing."""
    limit = Allowance(requests=3, characters=4 * len(LINES[0]))
    access = Access(Keys(["a", "b"]), limit, clock=lambda: 0.0)  # nothing is filled again meanwhile
    with serving({"tiny": run}, access=access) as server:

        def status(key, **more):
            return server.post("/translate", BODY | {"api_key": key} | more).status_code

        assert [status("a"), status("wrong"), status("a"), status("a")] == [200, 403, 200, 200]
        refused = server.post("/translate", BODY | {"api_key": "a"})
        assert refused.status_code == 429 and 1 <= int(refused.headers["retry-after"]) <= 20
        assert "3 requests in a minute" in refused.json()["error"]
        twice = f"{LINES[0]}\n{LINES[0]}"[: 2 * len(LINES[0])]
        assert [status("b", q=twice), status("b", q=twice), status("b")] == [200, 200, 429]


def test_addresses_behind_a_trusted_proxy_are_clients_of_their_own(run):
    for proxies, statuses in ((["127.0.0.1"], [200, 200, 429]), ([], [200, 429, 429])):
        access = Access(allowance=Allowance(requests=1), clock=lambda: 0.0)
        with serving({"tiny": run}, access=access, proxies=proxies) as server:
            addresses = ("192.0.2.1", "192.0.2.2", "192.0.2.1")
            answers = [server.post("/translate", BODY, headers={"X-Forwarded-For": each}) for each in addresses]
            assert [answer.status_code for answer in answers] == statuses


def test_paragraphs_are_translated_sentence_by_sentence(run):
    """With the place of a sentence that is too long, and a limit of sentences."""
    pytest.importorskip("sentencex", reason="needs the extra paragraphs")
    if "sentences" not in ANALYSES:
        pytest.skip("needs the extension paragraphs")
    seen, sentences_of = [], ANALYSES.load("sentences")

    class Seen(type(run)):
        def translate(self, lines, **keys):
            seen.extend(lines)
            return super().translate(lines, **keys)

    recording = Seen(**{field.name: getattr(run, field.name) for field in dataclasses.fields(run)})
    entries = []
    with serving({"tiny": recording}, split=True, limits=Limits(max_lines=5), access_log=entries.append) as server:
        seen.clear()
        paragraphs = f"  {LINES[0]}\t{LINES[1]}", f"{LINES[2]} "
        answer = server.post("/translate", BODY | {"q": "\r\n\n".join(paragraphs), "alternatives": 1}).json()
        assert sorted(seen) == sorted(LINES[:3])
        first, second, third = (each.hypotheses for each in with_two(run).translate(LINES[:3]))
        expected = []
        for i in range(2):
            parts = [[first[i].text, second[i].text], [third[i].text]]
            made = [sentences_of(run, text).join(part) for text, part in zip(paragraphs, parts, strict=True)]
            expected.append("\r\n\n".join(made))
        assert [answer["translatedText"], *answer["alternatives"]] == list(dict.fromkeys(expected))
        wait_for(lambda: entries, "entry")
        assert entries[-1]["sentences"] == 4
        long = server.post("/translate", BODY | {"q": f"{LINES[0]}\n{LINES[1]} {'a b ' * 60}"})
        assert long.status_code == 400 and "line 2, sentence 2 has" in long.json()["error"], long.text
        many = server.post("/translate", BODY | {"q": "One. Two. Three. Four. Five. Six."})
        assert many.status_code == 400 and "6 sentences: at most 5" in many.json()["error"]


def test_ready_fails_before_the_port_closes(run):
    """After SIGTERM; Ctrl-C and a second signal do not wait."""
    with serving({"tiny": run}, drain=600.0) as server:
        server.server.handle_exit(signal.SIGTERM, None)
        refused = server.get("/ready")
        assert refused.status_code == 503 and "stopping" in refused.json()["error"]
        assert server.get("/health").status_code == 200
        assert server.post("/translate", BODY).status_code == 200
        server.server.handle_exit(signal.SIGTERM, None)
        server.thread.join(150)
        assert not server.thread.is_alive()


def test_the_port_closes_after_the_time_of_draining(run):
    with serving({"tiny": run}, drain=0.2) as server:
        server.server.handle_exit(signal.SIGTERM, None)
        server.thread.join(150)
        assert not server.thread.is_alive()


def test_ctrl_c_does_not_drain(run):
    with serving({"tiny": run}, drain=600.0) as server:
        server.server.handle_exit(signal.SIGINT, None)
        server.thread.join(150)
        assert not server.thread.is_alive()


def test_a_line_that_no_output_can_satisfy_is_the_error_of_its_request():
    pytest.importorskip("t2t_flax.extensions.constraints")
    keys = {"constraints.lines": "json", "decode.strategy": "constrained_beam", "decode.max_length_offset": "10"}
    keys |= {"decode.max_source_length": "12"}
    asks = [json.dumps({"text": "A dog.", "constraints": ["Hund"], "avoid": avoid}) for avoid in ([], ["Hund"])]
    with serving({"toy": load("pretrained:toy", overrides=keys)}) as server:
        answer = server.post("/translate", {"q": asks[0], "source": "en", "target": "de"})
        assert "Hund" in answer.json()["translatedText"]
        answer = server.post("/translate", {"q": asks, "source": "en", "target": "de"})
        assert answer.status_code == 400 and "line 2 has no translation" in answer.json()["error"]
        # What a line holds beside its text is no part of its length.
        model, text = load("pretrained:toy"), "A dog and a dog and a dog and a dog and a dog."
        tokens = len(model.tokenizers.source.encode(text)) + 1
        answer = server.post("/translate", {"q": [json.dumps({"text": text})], "source": "en", "target": "de"})
        assert answer.status_code == 400 and f"has {tokens} tokens, more than the 12 allowed" in answer.json()["error"]
        answer = server.post("/translate", {"q": ['{"text": '], "source": "en", "target": "de"})
        assert answer.status_code == 400 and "line 1 is not JSON" in answer.json()["error"]
        assert server.get("/health").status_code == 200


def test_a_warm_up_that_a_stop_cancels_is_no_error(server, monkeypatch, caplog):
    model = server.models[0]

    def cancelled(what):
        raise concurrent.futures.CancelledError

    monkeypatch.setattr(model, "_warm_up", cancelled)
    model.compile_rest(lambda: None)
    model._threads[-1].join(150)
    assert not caplog.records
