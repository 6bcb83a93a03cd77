"""LibreTranslate's `format: "html"`: the server's answers are the documents translated by hand."""

import pytest
from helpers.refusals import assert_names

from t2t_flax.evaluation.restore import load
from t2t_flax.extensions.alignments.outputs import HtmlDocument

for package in ("fastapi", "python_multipart", "prometheus_client", "httpx"):
    pytest.importorskip(package, reason="needs the extra serve and the tests' HTTP client")
from helpers.http_server import serving  # noqa: E402

DOCUMENT = "<p>On Monday, my <b>uncle</b> meets the farmer.</p>\n<hr><p>I have milk.<br></p>"


@pytest.fixture(scope="module")
def run():
    return load(
        "pretrained:toy", overrides={"alignments.layer": "2", "decode.max_source_length": "40"}
    )


@pytest.fixture(scope="module")
def server(run):
    with serving({"toy": run}) as server:
        yield server


def ask(server, q, *, code=200, **fields):
    answer = server.post(
        "/translate", {"q": q, "source": "en", "target": "de", "format": "html"} | fields
    )
    assert answer.status_code == code, answer.text
    return answer.json()


@pytest.mark.slow
def test_documents_are_translated(server, run):
    document = HtmlDocument(DOCUMENT)
    texts = [translation.text for translation in run.translate(document.lines)]
    expected = document.translated(run, document.lines, texts)
    assert "<b>Onkel</b>" in expected and "\n<hr><p>" in expected
    assert ask(server, DOCUMENT) == {"translatedText": expected}
    assert ask(server, [DOCUMENT, "I have <i>milk</i>."])["translatedText"] == [
        expected,
        "Ich habe <i>Milch</i>.",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "q, name",
    [("a<br>" * 1500, "1000"), ("<p>" + "word " * 60 + "</p>", "40")],
    ids=["blocks", "tokens"],
)
def test_large_documents_are_refused(server, q, name):
    assert_names(ask(server, q, code=400)["error"], name)
