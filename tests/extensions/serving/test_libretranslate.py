"""LibreTranslate's API, and the languages of its requests."""

import dataclasses
import urllib.parse

import pytest
from helpers.refusals import assert_names
from helpers.runs import DIRECTIONS, LANGUAGES, SHORT_SEARCH, start, tiny_run

from t2t_flax.data.sources import toy
from t2t_flax.evaluation.restore import load
from t2t_flax.training import loop

for package in ("fastapi", "python_multipart", "prometheus_client", "httpx"):
    pytest.importorskip(package, reason="needs the extra serve and httpx")
from helpers.http_server import as_kind, serving, with_fields  # noqa: E402

from t2t_flax.extensions.serving.languages import (  # noqa: E402
    can_detect,
    detected,
    matching,
    name_of,
)

LINES = [source for source, _ in toy.pairs("test", 6)]
PAIR = {"source": "en", "target": "de"}


def translated(run, *lines):
    return [translation.text for translation in run.translate(lines)]


@pytest.mark.smoke
def test_texts_lists_forms_and_alternatives(server, run):
    """`api_key` is ignored where the server has no keys, and so are unknown fields."""
    first, second = translated(run, *LINES[:2])
    fields = {
        **PAIR,
        "q": f"{LINES[0]}\r\n\n  \n{LINES[1]}\n",
        "format": "text",
        "api_key": "",
        "x": "y",
    }
    expected = {"translatedText": f"{first}\r\n\n\n{second}\n"}
    assert server.post("/translate", fields).json() == expected
    assert server.post("/translate", data=fields).json() == expected
    assert (
        server.post(
            "/translate", files={name: (None, value) for name, value in fields.items()}
        ).json()
        == expected
    )
    assert server.post("/translate", data={**PAIR, "q": LINES[:2]}).json() == {
        "translatedText": [first, second]
    }
    asked = {"q": [LINES[2], ""], "source": "auto", "target": "de", "alternatives": 9}
    answer = server.post("/translate", asked).json()
    (hypotheses,) = with_fields(run, n_best=3).translate([LINES[2]])
    best, *others = dict.fromkeys(hypothesis.text for hypothesis in hypotheses.hypotheses)
    assert answer["translatedText"] == [best, ""] and answer["alternatives"] == [others, []]
    assert [found["language"] for found in answer["detectedLanguage"]] == ["en", "en"]


CONTROLS = ["It is\x0clate.", "It\x85is late.", "\x80It is\x9flate.", "It is late.\x00"]


@pytest.mark.parametrize(
    "q", [" ", "\x0c", "\x85\u2028", [" ", "", "\x0c"], [LINES[0], "\x85"], CONTROLS]
)
def test_blanks_and_control_characters_are_text(server, run, q):
    answer = server.post("/translate", PAIR | {"q": q})
    lines = [q] if isinstance(q, str) else q
    expected = translated(run, *lines)
    assert answer.json() == {"translatedText": expected[0] if isinstance(q, str) else expected}


def test_forms_hold_utf_8_and_no_files(server, run):
    line = f"{LINES[0]} Grüße"
    for body in (
        f"source=en&target=de&q={line}".encode(),
        urllib.parse.urlencode(PAIR | {"q": line}).encode(),
    ):
        answer = server.post(
            "/translate",
            content=body,
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        )
        assert answer.json() == {"translatedText": translated(run, line)[0]}
    many = {"q": ["a"] * 2000, **PAIR}
    for form in (
        dict(data=many),
        dict(files=[("q", (None, "a"))] * 2000),
        dict(data=PAIR, files={"q": ("f", "text")}),
    ):
        answer = server.post("/translate", **form)
        assert answer.status_code == 400 and answer.json()["error"]


def test_languages_and_settings(server):
    assert server.get("/languages").json() == [
        {"code": "de", "name": "German", "targets": []},
        {"code": "en", "name": "English", "targets": ["de"]},
    ]
    settings = server.get("/frontend/settings").json()
    assert (
        settings["keyRequired"] is settings["apiKeys"] is False and settings["charLimit"] == 20_000
    )
    assert settings["language"]["target"] == {"code": "de", "name": "German"}


def test_detection(server):
    answer = server.post("/detect", data={"q": "Das Wetter ist heute sehr schön."})
    if not can_detect():
        assert answer.status_code == 501
        return
    first, second = answer.json()
    assert (first["language"], second["language"]) == ("de", "en") and first["confidence"] > 90
    assert detected("123", ["en", "de"]) == [("en", 0), ("de", 0)]
    assert (
        detected("Das ist ein kleines Haus am See.", ["eng_Latn", "deu_Latn"])[0][0] == "deu_Latn"
    )


def test_two_models_are_told_apart_by_name_and_languages(run):
    back = dataclasses.replace(run.config.data, source_language="de", target_language="en")
    other = dataclasses.replace(run, config=dataclasses.replace(run.config, data=back))
    with serving({"tiny": run, "back": other}) as server:
        languages = {entry["code"]: entry["targets"] for entry in server.get("/languages").json()}
        assert languages == {"en": ["de"], "de": ["en"]}
        answers = [
            server.post("/api/translate", {"text": ["a"], **model}).json()
            for model in ({}, {"model": "back"})
        ]
        assert [answer["model"] for answer in answers] == ["tiny", "back"]
        answer = server.post("/translate", {"q": LINES[0], "source": "DE", "target": "en-US"})
        assert answer.json() == {"translatedText": translated(run, LINES[0])[0]}


@pytest.fixture(scope="module")
def both(tmp_path_factory, cache):
    """A model of two directions."""
    folder, data = (
        tmp_path_factory.mktemp("serving") / "both",
        DIRECTIONS | dict(valid="", test="same=toy:test:4"),
    )
    config = tiny_run(
        folder, steps=2, data=data, languages=LANGUAGES, checkpoint=dict(every_steps=2)
    )
    loop.train(start(config, folder, cache), score=None)
    return load(folder, overrides=SHORT_SEARCH)


def test_the_target_of_a_request_chooses_among_those_of_the_model(both):
    with serving({"both": both}) as server:
        for source, target in (("en", "de"), ("de", "en"), ("auto", "en")):
            answer = server.post(
                "/translate", {"q": LINES[0], "source": source, "target": target}
            ).json()
            assert answer["translatedText"] == translated(both, f"<2{target}> {LINES[0]}")[0]
            assert answer.get("detectedLanguage", {}).get("language") == (
                "de" if source == "auto" else None
            )
        (model,) = server.get("/api/models").json()
        assert (model["source"], model["target"], model["target_languages"]) == (
            "mul",
            "mul",
            ["de", "en"],
        )
        for path, body in (("translate", {"text": ["a"]}), ("attention", {"source": "a"})):
            for language in ({}, {"target_language": "fr"}):
                answer = server.post(f"/api/{path}", body | language)
                assert answer.status_code == 400
                assert_names(answer.json()["error"], "de, en", *language.values())


@pytest.mark.parametrize(
    "code, known, found",
    [
        ("EN", ["en", "de"], "en"),
        ("en-US", ["en", "de"], "en"),
        ("zh_CN", ["zh_Hans", "en"], "zh_Hans"),
        ("zh-hant", ["zh_Hans", "zh_Hant"], "zh_Hant"),
        ("zh", ["zh_Hans", "zh_Hant"], None),
        ("de", ["eng_Latn", "deu_Latn"], "deu_Latn"),
        ("fr", ["en", "de"], None),
        ("no code", ["en", "de"], None),
    ],
)
def test_codes_are_matched(code, known, found):
    assert matching(code, known) == found


@pytest.mark.parametrize(
    "code, name",
    [
        ("deu_Latn", "German (Latn)"),
        ("pt-BR", "Portuguese (BR)"),
        ("FRA", "French"),
        ("tlh", "tlh"),
    ],
)
def test_languages_have_english_names(code, name):
    assert name_of(code) == name


def test_paragraphs_are_translated_sentence_by_sentence(run):
    pytest.importorskip("sentencex", reason="needs the extra paragraphs")
    from t2t_flax.extensions.shared.sentences import sentences_of

    seen = []

    class Seen(type(run)):
        def translate(self, lines, **keys):
            seen.extend(lines)
            return super().translate(lines, **keys)

    with serving({"tiny": as_kind(run, Seen)}, split_sentences=True, max_lines=5) as server:
        seen.clear()
        paragraphs = f"  {LINES[0]}\t{LINES[1]}", f"{LINES[2]} "
        answer = server.post(
            "/translate", PAIR | {"q": "\r\n\n".join(paragraphs), "alternatives": 1}
        ).json()
        assert sorted(seen) == sorted(LINES[:3])
        found = with_fields(run, n_best=run.config.decode.beam_size).translate(LINES[:3])
        first, second, third = (each.hypotheses for each in found)
        expected = []
        for i in range(2):
            parts = [[first[i].text, second[i].text], [third[i].text]]
            made = [
                sentences_of(run, text).join(part)
                for text, part in zip(paragraphs, parts, strict=True)
            ]
            expected.append("\r\n\n".join(made))
        assert [answer["translatedText"], *answer["alternatives"]] == list(dict.fromkeys(expected))
        many = server.post("/translate", PAIR | {"q": "One. Two. Three. Four. Five. Six."})
        assert many.status_code == 400
        assert_names(many.json()["error"], "6", "5")
