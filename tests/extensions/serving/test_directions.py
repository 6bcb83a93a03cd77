"""A served run of several directions: the target language of a request chooses, also within one batch."""

import concurrent.futures

import pytest
from helpers.runs import DIRECTIONS, LANGUAGES, SHORT_SEARCH, start, tiny_run

from t2t_flax.data.sources import toy
from t2t_flax.evaluation.restore import load
from t2t_flax.training import loop

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("prometheus_client", reason="needs the extra serve")
pytest.importorskip("httpx", reason="the tests' HTTP client")
from helpers.http_server import serving  # noqa: E402

LINES = [source for source, _ in toy.pairs("test", 4)]
DATA = DIRECTIONS | dict(valid="", test="same=toy:test:4")


@pytest.fixture(scope="module")
def run(tmp_path_factory, cache):
    folder = tmp_path_factory.mktemp("serving-directions") / "both"
    config = tiny_run(folder, steps=2, data=DATA, languages=LANGUAGES, checkpoint=dict(every_steps=2))
    loop.train(start(config, folder, cache), score=None)
    return load(folder, overrides=SHORT_SEARCH)


@pytest.fixture(scope="module")
def server(run):
    with serving({"both": run}) as server:
        yield server


def test_languages_of_one_batch_do_not_depend_on_each_other(run):
    cases = [(line, language) for line in LINES for language in ("de", "en")]

    def ask(case):
        body = {"text": case[0], "target_language": case[1]}
        answer = server.post("/api/translate", body)
        assert answer.status_code == 200, answer.text
        return answer.json()["translations"][0]["hypotheses"][0]["pieces"]

    # A batch waits for others as long as they may take to arrive.
    with serving({"both": run}, wait=2.0) as server, concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
        before = _batches(server)
        answers = list(pool.map(ask, cases))
        assert _batches(server) - before < len(cases), "both languages were in one batch"
    for (line, language), pieces in zip(cases, answers, strict=True):
        (alone,) = run.translate([f"<2{language}> {line}"])
        assert pieces == run.tokenizers.target.pieces(alone.hypotheses[0].tokens)


def _batches(server):
    """How many batches have been translated."""
    name = "t2t_flax_batch_lines_count{"
    return sum(float(x.split()[-1]) for x in server.get("/metrics").text.splitlines() if x.startswith(name))


def test_libretranslate_chooses_by_its_target(server, run):
    languages = {entry["code"]: entry["targets"] for entry in server.get("/languages").json()}
    assert languages == {"en": ["de"], "de": ["en"]}
    for source, target in (("en", "de"), ("de", "en"), ("auto", "en")):
        answer = server.post("/translate", {"q": LINES[0], "source": source, "target": target}).json()
        (expected,) = run.translate([f"<2{target}> {LINES[0]}"])
        assert answer["translatedText"] == expected.text
        assert answer.get("detectedLanguage", {}).get("language") == ("de" if source == "auto" else None)
    answer = server.post("/translate", {"q": "a", "source": "en", "target": "fr"})
    assert answer.status_code == 400
    assert answer.json()["error"] == "en to fr is not supported; this server has en to de, de to en."


def test_models_and_pairs_name_their_languages(server, run):
    (model,) = server.get("/api/models").json()
    assert (model["source"], model["target"], model["target_languages"]) == ("mul", "mul", ["de", "en"])
    pair = {"source": LINES[0], "target": "Ja."}
    for path, key in (("/api/score", "pieces"), ("/api/attention", "source_pieces")):
        answers = [server.post(path, pair | {"target_language": language}).json() for language in ("de", "en")]
        assert answers[0][key] != answers[1][key]
    (expected,) = run.score([(f"<2en> {LINES[0]}", "Ja.")])
    answer = server.post("/api/score", pair | {"target_language": "en"}).json()
    assert answer["log_prob"] == pytest.approx(expected.log_prob, rel=1e-5)


@pytest.mark.parametrize(
    ("path", "body"),
    [("translate", {"text": "a"}), ("score", {"source": "a", "target": "b"}), ("attention", {"source": "a"})],
)
def test_a_missing_or_unknown_language_is_an_error(server, path, body):
    answer = server.post(f"/api/{path}", body)
    assert answer.status_code == 400 and "translates into de, en: begin each line" in answer.json()["error"]
    answer = server.post(f"/api/{path}", body | {"target_language": "fr"})
    assert answer.status_code == 400 and "not into 'fr'" in answer.json()["error"]
