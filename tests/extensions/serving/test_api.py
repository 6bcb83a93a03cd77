"""Our own API: answers are those of the run itself, and every mistake has its status."""

import concurrent.futures
import json

import numpy as np
import pytest
from helpers.refusals import assert_names
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax.data.sources import toy
from t2t_flax.evaluation.restore import load
from t2t_flax.extensions.shared.attention_maps import attend
from t2t_flax.tasks import task_of

for package in ("fastapi", "python_multipart", "prometheus_client", "httpx"):
    pytest.importorskip(package, reason="needs the extra serve and httpx")
from helpers.http_server import serving, with_fields  # noqa: E402
from pydantic import ValidationError  # noqa: E402

from t2t_flax.extensions.serving import libretranslate  # noqa: E402
from t2t_flax.extensions.serving.app import TranslateRequest  # noqa: E402

JSON_HEADERS = {"Content-Type": "application/json"}
LINES = [source for source, _ in toy.pairs("test", 12)]
PAIR = {"source": "en", "target": "de"}


def expected(run, line, n_best=1):
    (translation,) = with_fields(run, n_best=n_best).translate([line])
    return [
        (task_of(run.config).postprocess(line, h.text), h.score) for h in translation.hypotheses
    ]


def test_concurrent_requests_get_what_each_would_get_alone(server, run):
    cases = [(line, 1 + i % 3) for i, line in enumerate(2 * LINES)]

    def ask(case):
        answer = server.post("/api/translate", {"text": [case[0], ""], "n_best": case[1]})
        assert answer.status_code == 200, answer.text
        first, empty = answer.json()["translations"]
        assert first["source"] == case[0] and {h["text"] for h in empty["hypotheses"]} == {""}
        return first["hypotheses"]

    before = server.metric("batch_lines_count", model="tiny")
    with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
        answers = list(pool.map(ask, cases))
    for (line, n_best), hypotheses in zip(cases, answers, strict=True):
        alone = expected(run, line, n_best)
        assert [h["text"] for h in hypotheses] == [text for text, _ in alone]
        assert [h["score"] for h in hypotheses] == pytest.approx(
            [score for _, score in alone], abs=1e-4
        )
        assert all(
            "".join(h["pieces"]).replace("\u2581", " ").split() == h["text"].split()
            for h in hypotheses
        )
    assert server.metric("batch_lines_count", model="tiny") - before < len(cases), (
        "nothing shared a batch"
    )


def test_attention_is_that_of_the_run(server, run):
    source, target = next(iter(toy.pairs("test", 1)))
    answer = server.post("/api/attention", {"source": source, "target": target}).json()
    maps = attend(run, source, target)
    assert answer["source_pieces"] == list(maps.source_tokens) and answer["target_pieces"] == list(
        maps.target_tokens
    )
    for kind in ("cross", "encoder", "decoder"):
        assert answer[kind] == np.rint(1000 * getattr(maps, kind)).tolist()


def test_models_are_described(server, run):
    (model,) = server.get("/api/models").json()
    assert (model["name"], model["steps"], model["source"], model["target"]) == (
        "tiny",
        [2],
        "en",
        "de",
    )
    assert (model["heads"], model["max_n_best"]) == (run.config.model.num_heads, 3) and model[
        "parameters"
    ] > 1000


@pytest.mark.parametrize(
    "path, body, status, names",
    [
        ("/translate", PAIR, 400, ["q"]),
        ("/translate", PAIR | {"q": ""}, 400, ["q"]),
        ("/translate", PAIR | {"q": []}, 400, ["q"]),
        ("/translate", PAIR | {"q": {}}, 400, ["q"]),
        ("/translate", PAIR | {"q": "x" * 20_001}, 400, ["q", "20001", "20000"]),
        ("/translate", PAIR | {"q": "a\n" * 1001}, 400, ["q", "1002", "1000"]),
        ("/translate", PAIR | {"q": "ok\n" + "x y " * 40}, 400, ["line 2", "40"]),
        ("/translate", PAIR | {"q": "a", "target": "fr"}, 400, ["en to", "fr", "en to"]),
        ("/translate", PAIR | {"q": "a", "format": "xml"}, 400, ["format", "xml"]),
        ("/api/translate", {"text": ["a"], "model": "none"}, 404, ["none", "tiny"]),
        ("/api/translate", {"text": ["a"], "n_best": 4}, 400, ["n_best", "4", "3"]),
        ("/api/translate", {"text": ["a"], "n_best": 0}, 400, ["n_best"]),
        ("/api/translate", {"text": ["a\nb"]}, 400, ["text"]),
        (
            "/api/translate",
            {"text": ["a"], "target_language": "x" * 101},
            400,
            ["target_language", "100"],
        ),
        ("/api/translate", [], 400, []),
        ("/api/attention", {"source": "a", "target": " "}, 400, ["target"]),
        ("/api/attention", {"source": "a", "target": "x y " * 40}, 400, ["target"]),
        ("/api/nothing", {}, 404, []),
        ("/health", {}, 405, []),
    ],
)
def test_every_mistake_has_its_status_and_one_text(server, path, body, status, names):
    answer = server.post(path, body)
    assert answer.status_code == status and set(answer.json()) == {"error"}
    assert_names(answer.json()["error"], *names)


@pytest.mark.parametrize("path", ["/translate", "/detect", "/api/translate", "/api/attention"])
def test_reading_what_is_to_be_sent_is_405(server, path):
    answer = server.get(path)
    assert answer.status_code == 405 and set(answer.json()) == {"error"}


@pytest.mark.parametrize(
    "model, field", [(TranslateRequest, "text"), (libretranslate.TranslateRequest, "q")]
)
def test_a_wrong_list_ends_at_its_first_error(model, field):
    with pytest.raises(ValidationError) as caught:
        model.model_validate(PAIR | {field: [1] * 1000})
    assert caught.value.error_count() <= 2


@pytest.mark.parametrize("path", ["/translate", "/api/translate"])
@pytest.mark.parametrize("kind", ["", "text/plain"])
def test_what_pages_of_other_servers_may_send_is_refused(server, path, kind):
    body = json.dumps({"q": "a", "text": ["a"], **PAIR}).encode()
    assert server.post(path, content=body, headers={"Content-Type": kind}).status_code == 415


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = {
    "/translate": ("q", "source", "target", "format", "alternatives"),
    "/api/translate": ("text", "model", "n_best"),
    "/api/attention": ("source", "target", "model"),
}


@settings(max_examples=60)
@given(st.data())
def test_garbage_is_answered_with_4xx_and_the_server_lives(server, data):
    """The first field always has a value that no field takes."""
    path = data.draw(st.sampled_from(sorted(NAMES)))
    fields = {name: data.draw(JSON) for name in data.draw(st.sets(st.sampled_from(NAMES[path])))}
    body = data.draw(
        st.just(fields | {NAMES[path][0]: data.draw(st.sampled_from([None, 1, {}, [[]], " "]))})
        | JSON
    )
    content = data.draw(st.just(json.dumps(body).encode()) | st.binary(max_size=40))
    answer = server.post(path, content=content, headers=JSON_HEADERS)
    assert 400 <= answer.status_code < 500 and answer.json()["error"]
    assert server.get("/health").json() == {"status": "ok"}


def test_half_of_a_surrogate_pair_is_no_text(server):
    wrong = "\ud800"
    for path, body in (
        ("/translate", PAIR | {"q": wrong}), ("/api/translate", {"text": [wrong]}), ("/api/attention", {"source": wrong}),
        ("/api/translate", {"text": ["a"], "target_language": wrong}),
    ):  # fmt: skip
        answer = server.post(path, content=json.dumps(body), headers=JSON_HEADERS)
        assert answer.status_code == 400 and answer.json()["error"]


def test_metrics_count_requests_by_route_and_status(server):
    before = server.metric("requests_total", path="other", status="404")
    server.get("/some/other/path")
    assert server.metric("requests_total", path="other", status="404") == before + 1
    text = server.get("/metrics").text
    assert 't2t_flax_queue_requests{model="tiny"} 0.0' in text and "/some/other" not in text


def test_page_and_description_are_served(server):
    assert "</html>" in server.get("/").text and server.get("/page.js").status_code == 200
    assert {"/translate", "/languages", "/api/translate", "/health"} <= set(
        server.get("/openapi.json").json()["paths"]
    )
    assert server.client.head("/health").status_code == 200
    docs = server.get("/docs").text
    assert_names(
        docs,
        "POST /translate",
        "alternatives",
        "POST /api/translate",
        "n_best",
        "GET /health",
        "/openapi.json",
    )
    assert server.get("/redoc").status_code == 404, "no page runs scripts of other servers"


def test_samples_are_those_of_the_request_alone(run):
    sampled = with_fields(run, strategy="sample", seed=3)
    with (
        serving({"tiny": sampled}, max_batch=2) as server,
        concurrent.futures.ThreadPoolExecutor(3) as pool,
    ):
        bodies = [LINES[:3], LINES[3:6], LINES[:3]]
        answers = list(
            pool.map(lambda lines: server.post("/api/translate", {"text": lines}).json(), bodies)
        )
    for lines, answer in zip(bodies, answers, strict=True):
        alone = [translation.text for translation in sampled.translate(lines)]
        assert [each["hypotheses"][0]["text"] for each in answer["translations"]] == alone


def test_another_engine_gives_what_it_gives_alone(run, tmp_path, monkeypatch):
    """CTranslate2 under the rules that it follows."""
    pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    monkeypatch.setenv("HOME", str(tmp_path))  # where the exported model is kept
    other = with_fields(
        run, engine="ctranslate2", length_penalty="power", early_stopping="beam_full"
    )
    with serving({"tiny": other}) as server, concurrent.futures.ThreadPoolExecutor(6) as pool:
        bodies = [{"text": [line], "n_best": 1 + i % 3} for i, line in enumerate(LINES)]
        answers = list(pool.map(lambda body: server.post("/api/translate", body).json(), bodies))
        assert server.get("/api/models").json()[0]["engine"].startswith("ctranslate2 ")
    for body, answer in zip(bodies, answers, strict=True):
        hypotheses = answer["translations"][0]["hypotheses"]
        assert [h["text"] for h in hypotheses] == [
            t for t, _ in expected(other, *body["text"], body["n_best"])
        ]


def test_a_line_that_no_output_can_satisfy_is_the_error_of_its_request():
    pytest.importorskip("t2t_flax.extensions.constraints")
    keys = {
        "constraints.lines": "json",
        "decode.strategy": "constrained_beam",
        "decode.max_length_offset": "10",
    }
    run = load("pretrained:toy", overrides=keys | {"decode.max_source_length": "12"})
    asks = [
        json.dumps({"text": "A dog.", "constraints": ["Hund"], "avoid": avoid})
        for avoid in ([], ["Hund"])
    ]
    with serving({"toy": run}) as server:
        assert "Hund" in server.post("/translate", {"q": asks[0], **PAIR}).json()["translatedText"]
        # What a line holds beside its text is no part of its length.
        for q, name in (
            (asks, "line 2"),
            (['{"text": '], "line 1"),
            ([json.dumps({"text": "A dog " * 9})], "12"),
        ):
            answer = server.post("/translate", {"q": q, **PAIR})
            assert answer.status_code == 400
            assert_names(answer.json()["error"], name)
        assert server.get("/health").status_code == 200
