"""The page in a real browser: Chromium and a server of two runs."""

import threading

import numpy as np
import pytest
from helpers.browser import chromium
from helpers.processes import wait_for

from t2t_flax.evaluation.restore import load

for package in ("fastapi", "python_multipart", "prometheus_client", "uvicorn", "httpx"):
    pytest.importorskip(package, reason="needs the extra serve and httpx")
import uvicorn  # noqa: E402

from t2t_flax.extensions.serving.app import create_app  # noqa: E402
from t2t_flax.extensions.serving.metrics import Metrics  # noqa: E402
from t2t_flax.extensions.serving.model import ServedModel  # noqa: E402
from t2t_flax.extensions.serving.server import listen, url  # noqa: E402
from t2t_flax.extensions.serving.service import Settings  # noqa: E402

pytestmark = pytest.mark.slow
MARKUP = "<img src=x onerror=window.ran=1>"


@pytest.fixture(scope="module")
def address():
    run, metrics = load("pretrained:toy"), Metrics()
    models = [
        ServedModel(name, run.config, lambda: run, metrics, max_batch=1)
        for name in ("first", "second")
    ]
    app = create_app(models, Settings(keys=["secret"]), metrics)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    listening = listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        wait_for(lambda: all(model.ready for model in models), "ready server")
        yield url(listening)
    finally:
        server.should_exit = True
        thread.join(60)


@pytest.fixture(scope="module")
def browser():
    with chromium() as launched:
        yield launched


@pytest.fixture
def page(browser, address):
    """The page, whose key is given when it asks.

    At the end the console has no error besides failed requests.
    """
    with browser.new_context(viewport={"width": 360, "height": 700}) as context:
        made, errors = context.new_page(), []
        made.on("pageerror", lambda error: errors.append(str(error)))
        made.on("console", lambda message: message.type == "error" and errors.append(message.text))
        made.on("dialog", lambda dialog: dialog.accept("secret"))
        made.goto(address)
        made.wait_for_selector("#translate:enabled", timeout=300_000)
        made.set_default_timeout(200_000)
        yield made
        assert [text for text in errors if not text.startswith("Failed to load resource")] == []
        assert made.evaluate("window.ran") is None


def shown(page):
    """The numbers of the table of weights."""
    page.wait_for_selector("#attention:visible")
    rows = page.locator("#weights tr").evaluate_all(
        "rows => rows.slice(1).map(r => [...r.cells].map(c => c.innerText))"
    )
    return np.array([[float(cell or 0) for cell in row[1:]] for row in rows])


def test_translations_scores_and_attention_are_those_of_the_server(page):
    page.fill("#text", "It is late.\n\nThe house is red.")
    with (
        page.expect_response("**/api/attention") as attention,
        page.expect_response(
            lambda response: "translate" in response.url and response.ok
        ) as translated,
    ):
        page.keyboard.press("Control+Enter")
    lines = translated.value.json()["translations"]
    hypotheses = [hypothesis for line in lines for hypothesis in line["hypotheses"]]
    assert [line["source"] for line in lines] == ["It is late.", "The house is red."] and len(
        hypotheses
    ) == 8
    assert page.locator("#results .text").all_inner_texts() == [
        each["text"] or "—" for each in hypotheses
    ]
    scores = page.locator("#results .score").all_inner_texts()
    assert scores == [f"{each['score']:.3f}" for each in hypotheses]
    cross = np.array(attention.value.json()["cross"]) / 10
    np.testing.assert_allclose(shown(page), cross.mean((0, 1)), atol=0.51)
    page.select_option("#head", "1,0")
    np.testing.assert_allclose(shown(page), cross[1, 0], atol=0.51)
    page.select_option("#kind", "decoder")
    np.testing.assert_allclose(
        shown(page), np.array(attention.value.json()["decoder"])[1, 0] / 10, atol=0.51
    )
    page.locator("#results input").nth(5).check()
    page.wait_for_selector("#attention:visible")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_chosen_run_translates(page):
    page.select_option("#model", "second")
    page.fill("#text", "It is late.")
    with page.expect_request("**/api/translate") as request:
        page.click("#translate")
    assert request.value.post_data_json == {"model": "second", "text": ["It is late."], "n_best": 4}


def test_errors_are_shown_and_markup_stays_text(page):
    page.route(
        "**/api/translate",
        lambda route: route.fulfill(status=429, json={"error": f"no luck {MARKUP}"}),
    )
    page.fill("#text", MARKUP)
    page.click("#translate")
    page.get_by_text("no luck").wait_for()
    assert MARKUP in page.inner_text("#status")
    hypothesis = {"text": MARKUP, "score": -1.0, "pieces": []}
    answer = {"model": "first", "translations": [{"source": MARKUP, "hypotheses": [hypothesis]}]}
    page.unroute("**/api/translate")
    page.route("**/api/translate", lambda route: route.fulfill(json=answer))
    page.click("#translate")
    page.wait_for_selector("#results .text")
    assert page.inner_text("#results .text") == MARKUP and page.locator("#results img").count() == 0


def test_the_page_waits_for_models_that_are_loaded(page):
    page.clock.install()
    page.route("**/api/models", lambda route: route.fulfill(status=503, json={"error": "not yet"}))
    page.reload()
    page.get_by_text("not yet").wait_for()
    assert page.is_disabled("#translate")
    page.unroute("**/api/models")
    page.clock.run_for(5000)
    page.wait_for_selector("#translate:enabled")
