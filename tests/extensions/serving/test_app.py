"""The HTTP API over a real connection: answers equal those of the run itself, and every mistake has its status."""

import concurrent.futures
import dataclasses
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax.data.sources import toy
from t2t_flax.errors import UserError
from t2t_flax.extensions.serving.programs import Programs
from t2t_flax.extensions.shared.attention_maps import attend
from t2t_flax.tasks import task_of

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("prometheus_client", reason="needs the extra serve")
pytest.importorskip("httpx", reason="the tests' HTTP client")
from helpers.http_server import serving  # noqa: E402

JSON_HEADERS = {"Content-Type": "application/json"}
LINES = [source for source, _ in toy.pairs("test", 12)]


@pytest.fixture(scope="module")
def server(run):
    with serving({"tiny": run}) as server:
        yield server


def with_n_best(run, n):
    decode = dataclasses.replace(run.config.decode, n_best=n)
    return dataclasses.replace(run, config=dataclasses.replace(run.config, decode=decode))


def expected(run, line, *, n_best=1, prefix=""):
    (translation,) = with_n_best(run, n_best).translate([line], prefixes=[prefix] if prefix else None)
    return [(task_of(run.config).postprocess(line, h.text), h.score) for h in translation.hypotheses]


def texts(run, line, **keys):
    return [text for text, _ in expected(run, line, **keys)]


def test_concurrent_requests_get_what_each_would_get_alone(server, run):
    """With other numbers of hypotheses and other prefixes beside them."""
    cases = [
        (line, 1 + i % 3, ["", "Der", "Wir haben"][i // 2 % 3] if i % 4 else "") for i, line in enumerate(2 * LINES)
    ]

    def ask(case):
        line, n_best, prefix = case
        body = {"text": line, "n_best": n_best} | ({"prefix": prefix} if prefix else {})
        answer = server.post("/api/translate", body)
        assert answer.status_code == 200, answer.text
        (translation,) = answer.json()["translations"]
        assert translation["source"] == line
        return translation["hypotheses"]

    with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
        answers = list(pool.map(ask, cases))
    for (line, n_best, prefix), hypotheses in zip(cases, answers, strict=True):
        alone = expected(run, line, n_best=n_best, prefix=prefix)
        assert [h["text"] for h in hypotheses] == [text for text, _ in alone]
        assert [h["score"] for h in hypotheses] == pytest.approx([score for _, score in alone], abs=1e-4)
        assert all("".join(h["pieces"]).replace("\u2581", " ").split() == h["text"].split() for h in hypotheses)
    counted = server.get("/metrics").text
    batches, lines = (
        float(re.search(rf"t2t_flax_batch_lines_{name}\S* (\S+)", counted)[1]) for name in ("count", "sum")
    )
    assert lines >= len(cases) and batches < lines, "nothing shared a batch"


@pytest.mark.smoke
def test_libretranslate_clients_get_lines_lists_and_alternatives(server, run):
    text = f"{LINES[0]}\r\n\n  \n{LINES[1]}\n"
    answer = server.post("/translate", {"q": text, "source": "en", "target": "de", "format": "text", "api_key": "none"})
    first, second = texts(run, LINES[0])[0], texts(run, LINES[1])[0]
    assert answer.json() == {"translatedText": f"{first}\r\n\n\n{second}\n"}
    answer = server.post(
        "/translate", {"q": [LINES[2], ""], "source": "auto", "target": "de", "alternatives": 9}
    ).json()
    best, *others = dict.fromkeys(texts(run, LINES[2], n_best=3))
    assert answer["translatedText"] == [best, ""] and answer["alternatives"] == [others, []]
    assert [found["language"] for found in answer["detectedLanguage"]] == ["en", "en"]
    form = server.post("/translate", data={"q": LINES[0], "source": "en", "target": "de"})
    assert form.json() == {"translatedText": first}


def test_empty_lines_are_answered_without_a_batch(run):
    """As the run answers them; an empty line with a prefix, and samples, which are numbered, are batched."""
    seen = []

    class Seen(type(run)):
        def translate(self, lines, **keys):
            seen.extend(lines)
            return super().translate(lines, **keys)

    recording = Seen(**{field.name: getattr(run, field.name) for field in dataclasses.fields(run)})
    lines = ["", LINES[0], " ", LINES[1], ""]
    with serving({"tiny": recording}) as server:
        seen.clear()
        answer = server.post("/api/translate", {"text": lines, "n_best": 2}).json()
        assert sorted(seen) == sorted(LINES[:2])
        for line, translation in zip(lines, answer["translations"], strict=True):
            alone = expected(run, line, n_best=2)
            assert [h["text"] for h in translation["hypotheses"]] == [text for text, _ in alone]
        body = {"text": ["", "", LINES[0]], "prefix": ["Der", "", ""]}
        answer = server.post("/api/translate", body).json()["translations"]
        assert [entry["hypotheses"][0]["text"] for entry in answer[:2]] == ["Der", ""]


def test_languages_and_models_are_listed(server, run):
    assert server.get("/languages").json() == [
        {"code": "de", "name": "German", "targets": []},
        {"code": "en", "name": "English", "targets": ["de"]},
    ]
    (model,) = server.get("/api/models").json()
    assert model["name"] == model["workdir"] == "tiny" and model["steps"] == [2]
    assert (model["source"], model["target"], model["heads"], model["beam_size"]) == (
        "en",
        "de",
        run.config.model.num_heads,
        3,
    )
    assert model["parameters"] > 1000 and model["layers"]["encoder"] == run.config.model.num_encoder_layers


def test_scores_and_attention_are_those_of_the_run(server, run):
    source, target = next(iter(toy.pairs("test", 1)))
    answer = server.post("/api/score", {"source": source, "target": target}).json()
    (alone,) = run.score([(source, target)])
    assert answer["log_prob"] == pytest.approx(alone.log_prob, abs=1e-3)
    assert [p["piece"] for p in answer["pieces"]] == list(alone.tokens)
    assert sum(p["log_prob"] for p in answer["pieces"]) == pytest.approx(answer["log_prob"], abs=1e-3)
    answer = server.post("/api/attention", {"source": source, "target": target}).json()
    maps = attend(run, source, target)
    assert answer["source_pieces"] == list(maps.source_tokens) and answer["target_pieces"] == list(maps.target_tokens)
    for kind in ("cross", "encoder", "decoder"):
        assert answer[kind] == np.rint(1000 * getattr(maps, kind)).tolist()
    own = server.post("/api/attention", {"source": "Yes."}).json()
    try:
        pieces = list(attend(run, "Yes.").target_tokens)
    except UserError as error:  # the translation of a model that is hardly trained may be empty
        assert own == {"error": str(error)}
    else:
        assert own["target_pieces"] == pieces


@pytest.mark.parametrize(
    "path, body, status, message",
    [
        ("/translate", {"source": "en", "target": "de"}, 400, "q is missing"),
        ("/translate", {"q": "", "source": "en", "target": "de"}, 400, "q has no text"),
        ("/translate", {"q": ["", " \n"], "source": "en", "target": "de"}, 400, "q has no text"),
        ("/translate", {"q": "a\x00b", "source": "en", "target": "de"}, 400, "q has the control character U+0000"),
        ("/translate", {"q": "a\x1b", "source": "en", "target": "de"}, 400, "U+001B"),
        ("/translate", {"q": "a", "source": "en", "target": "fr"}, 400, "en to fr is not supported; this server has en to de."),
        ("/translate", {"q": "a", "source": "en", "target": "de", "format": "xml"}, 400, "'xml' is not supported"),
        ("/translate", {"q": {}, "source": "en", "target": "de"}, 422, "q must be a string or a list of strings."),
        ("/translate", {"q": "x" * 20_001, "source": "en", "target": "de"}, 400, "q has 20001 characters: at most 20000"),
        ("/translate", {"q": "ok\n" + "x y " * 40, "source": "en", "target": "de"}, 400, "more than the 40 allowed"),
        ("/api/translate", {"text": "a", "model": "none"}, 404, "there is no model 'none'; there is tiny."),
        ("/api/translate", {"text": "a", "n_best": 4}, 400, "n_best = 4: tiny gives 1 to 3 translations of a line."),
        ("/api/translate", {"text": ["a", "b"], "prefix": ["c"]}, 400, "1 prefixes for 2 lines"),
        ("/api/translate", {"text": ["a\nb"]}, 400, "text must be one line"),
        ("/api/translate", {"text": "a", "prefix": "x y " * 40}, 400, "prefix 1 has"),
        ("/api/translate", [], 422, "the body must be a JSON object."),
        ("/api/score", {"source": "a", "target": " "}, 400, "target has no text"),
        ("/api/score", {"source": "a", "target": "x y " * 40}, 400, "the target has"),
        ("/api/attention", {"source": "a", "target": "b", "layers": 1}, 422, "unknown field 'layers'"),
        ("/api/nothing", {}, 404, "Not Found"),
        ("/health", {}, 405, "Method Not Allowed"),
    ],
)  # fmt: skip
def test_every_mistake_has_its_status_and_one_text(server, path, body, status, message):
    answer = server.post(path, body)
    assert answer.status_code == status and message in answer.json()["error"] and set(answer.json()) == {"error"}


def test_body_that_is_no_json_is_refused(server):
    answer = server.post("/api/translate", content=b'{"text": ', headers=JSON_HEADERS)
    assert answer.status_code == 400 and "not valid JSON" in answer.json()["error"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = {
    "/translate": ("q", "source", "target", "format", "alternatives"),
    "/api/translate": ("text", "model", "prefix", "n_best"),
    "/api/score": ("source", "target", "model"),
    "/api/attention": ("source", "target", "model"),
}


@settings(max_examples=60)
@given(st.data())
def test_garbage_is_answered_with_4xx_and_the_server_lives(server, data):
    """At least one field always has a value that no field takes."""
    path = data.draw(st.sampled_from(sorted(NAMES)))
    fields = {name: data.draw(JSON) for name in data.draw(st.sets(st.sampled_from(NAMES[path])))}
    body = data.draw(st.just(fields | {NAMES[path][0]: data.draw(st.sampled_from([None, 1, {}, [[]], "\x00"]))}) | JSON)
    content = data.draw(st.just(json.dumps(body).encode()) | st.binary(max_size=40))
    answer = server.post(path, content=content, headers=JSON_HEADERS)
    assert 400 <= answer.status_code < 500 and answer.json()["error"]
    assert server.get("/health").json() == {"status": "ok"}


def test_docs_and_page_load_nothing_from_elsewhere(server):
    """Neither the page of the API nor the description of it names another host."""
    docs, openapi = server.get("/docs"), server.get("/openapi.json")
    assert docs.status_code == 200 and not re.search(r"(src|href)=[\"']?(https?:)?//", docs.text)
    paths = openapi.json()["paths"]
    assert {"/translate", "/languages", "/api/translate", "/api/attention", "/api/score", "/health"} <= set(paths)
    assert all(path in docs.text for path in paths)
    required = paths["/translate"]["post"]["requestBody"]["content"]["application/json"]["schema"]["required"]
    assert required == ["q", "source", "target"]


def test_metrics_count_requests_by_path_and_status(server):
    def count(path, status):
        found = re.search(
            rf't2t_flax_requests_total{{path="{path}",status="{status}"}} (\S+)', server.get("/metrics").text
        )
        return float(found[1]) if found else 0.0

    before, unknown = count("/translate", 422), count("other", 404)
    server.post("/translate", {"q": 1})
    server.get("/some/other/path")
    assert (count("/translate", 422), count("other", 404)) == (before + 1, unknown + 1)
    text = server.get("/metrics").text
    assert 't2t_flax_queue_requests{model="tiny"} 0.0' in text and "/some/other" not in text
    assert "t2t_flax_request_seconds_bucket" in text


def test_two_models_are_told_apart_by_name_and_languages(run):
    back = dataclasses.replace(run.config.data, source_language="de", target_language="en")
    other = dataclasses.replace(run, config=dataclasses.replace(run.config, data=back), workdir=epath.Path("."))
    with serving({"tiny": run, "back": other}) as server:
        languages = {entry["code"]: entry["targets"] for entry in server.get("/languages").json()}
        assert languages == {"en": ["de"], "de": ["en"]}
        assert [entry["workdir"] for entry in server.get("/api/models").json()] == ["tiny", Path.cwd().name]
        answers = [server.post("/api/translate", {"text": "a", **model}).json() for model in ({}, {"model": "back"})]
        assert [answer["model"] for answer in answers] == ["tiny", "back"]
        answer = server.post("/translate", {"q": LINES[0], "source": "de", "target": "en"})
        assert answer.json() == {"translatedText": texts(run, LINES[0])[0]}


def test_samples_are_those_of_the_request_alone(run):
    decode = dataclasses.replace(run.config.decode, strategy="sample", seed=3)
    sampled = dataclasses.replace(run, config=dataclasses.replace(run.config, decode=decode))
    with serving({"tiny": sampled}, max_batch=2) as server, concurrent.futures.ThreadPoolExecutor(3) as pool:
        bodies = [LINES[:3], LINES[3:6], LINES[:3]]
        answers = list(pool.map(lambda lines: server.post("/api/translate", {"text": lines}).json(), bodies))
    for lines, answer in zip(bodies, answers, strict=True):
        alone = [translation.text for translation in sampled.translate(lines)]
        assert [each["hypotheses"][0]["text"] for each in answer["translations"]] == alone


def test_another_engine_gives_what_it_gives_alone(run, tmp_path, monkeypatch):
    """CTranslate2 under the rules that it follows."""
    pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    monkeypatch.setenv("HOME", str(tmp_path))  # where the exported model is kept
    rules = dict(engine="ctranslate2", length_penalty="power", early_stopping="beam_full")
    decode = dataclasses.replace(run.config.decode, **rules)
    other = dataclasses.replace(run, config=dataclasses.replace(run.config, decode=decode))
    with serving({"tiny": other}) as server, concurrent.futures.ThreadPoolExecutor(6) as pool:
        bodies = [{"text": line, "n_best": 1 + i % 3} for i, line in enumerate(LINES)]
        answers = list(pool.map(lambda body: server.post("/api/translate", body).json(), bodies))
        assert server.get("/api/models").json()[0]["engine"].startswith("ctranslate2 ")
    for body, answer in zip(bodies, answers, strict=True):
        hypotheses = answer["translations"][0]["hypotheses"]
        assert [h["text"] for h in hypotheses] == texts(other, body["text"], n_best=body["n_best"])


def test_usual_requests_after_the_warm_up_compile_nothing(run):
    """With a beam of its own, whose programs no other test has compiled."""
    decode = dataclasses.replace(run.config.decode, beam_size=2, alpha=0.8, max_length_offset=90)
    other, compiled = dataclasses.replace(run, config=dataclasses.replace(run.config, decode=decode)), []

    def listener(event, seconds, **keys):
        if event == "/jax/core/compile/jaxpr_to_mlir_module_duration":
            compiled.append(event)

    bodies = [{"text": "Yes."}, {"text": "Yes.", "n_best": 2}, {"text": "No."}, {"text": 12 * "It is "}]
    jax.monitoring.register_event_duration_secs_listener(listener)
    programs = Programs()
    try:
        with serving({"tiny": other}, max_batch=1) as server:
            (model,) = server.models
            model.compile_rest(server.failed.set)
            model._threads[-1].join()
            programs.wait()
            warm = len(compiled)
            for body in bodies:
                assert server.post("/api/translate", body).status_code == 200
                assert warm and len(compiled) == warm, body
    finally:
        programs.close()
        jax.monitoring.unregister_event_duration_listener(listener)
