"""The page of a server that wants a key, in a real browser: when it asks, with what it goes on, and what it keeps."""

import pytest
from helpers.browser import chromium

pytestmark = pytest.mark.slow
for package in ("fastapi", "uvicorn", "prometheus_client", "httpx"):
    pytest.importorskip(package, reason="needs the extra serve and httpx")
from helpers.http_server import serving  # noqa: E402
from helpers.server_page import ask, hypotheses  # noqa: E402

from t2t_flax.extensions.serving.access import Access, Keys  # noqa: E402


@pytest.fixture(scope="module")
def server(run):
    with serving({"tiny": run}, access=Access(Keys(["secret"]))) as server:
        yield server


@pytest.fixture(scope="module")
def browser():
    with chromium() as launched:
        yield launched


class Visit:
    """The page, ready, with answers for its prompts, None = cancel. asked: prompts so far. sent: the keys of POST requests."""

    def __init__(self, page, url, *given):
        self.page, self.asked, self.sent, self._given = page, [], [], list(given)
        page.on("dialog", self._answer)
        page.on("request", self._note)
        page.goto(url)
        page.wait_for_selector("#translate:enabled", timeout=300_000)
        page.set_default_timeout(200_000)

    def _answer(self, dialog):
        self.asked.append((dialog.type, dialog.message))
        key = self._given.pop(0)
        dialog.dismiss() if key is None else dialog.accept(key)

    def _note(self, request):
        if request.method == "POST":
            self.sent.append(request.headers.get("authorization"))

    def _asks(self, text, status):
        """Asks, and waits for an answer, so that what the page says is of it."""
        with self.page.expect_response(lambda r: r.url.endswith("api/translate") and r.status == status):
            ask(self.page, text)

    def translated(self, text):
        self._asks(text, 200)
        self.page.wait_for_selector("#status:has-text('Translated in')")
        return hypotheses(self.page)

    def refused(self, text):
        self._asks(text, 403)
        self.page.wait_for_selector("#status:has-text('Not translated')")
        return self.page.locator(".panel").inner_text()


@pytest.fixture
def visit(browser, server):
    contexts = []

    def start(*given):
        contexts.append(browser.new_context())
        return Visit(contexts[-1].new_page(), server.url, *given)

    yield start
    for context in contexts:
        context.close()


def test_the_key_is_asked_for_once_and_goes_with_all_requests(visit):
    """Neither the page nor the models need it, so that it is asked for with the first text."""
    page = visit(" secret ")
    assert page.asked == []
    assert page.translated("It is late.")
    assert page.asked == [("prompt", "API key of this server")]
    assert page.translated("The house is red.")
    assert len(page.asked) == 1
    assert page.sent[0] is None and set(page.sent[1:]) == {"Bearer secret"}


def test_a_wrong_key_is_asked_for_again(visit):
    page = visit("wrong", "secret")
    assert page.translated("It is late.")
    assert len(page.asked) == 2 and page.sent[:3] == [None, "Bearer wrong", "Bearer secret"]


def test_who_has_no_key_sees_why_and_is_not_asked_again(visit):
    page = visit(None)
    assert "key" in page.refused("It is late.")
    assert "key" in page.refused("The house is red.")
    assert len(page.asked) == 1 and set(page.sent) == {None}


def test_the_key_is_kept_nowhere(visit):
    """Another load of the page asks again; neither the address nor what the browser stores has it."""
    page = visit("secret", "secret")
    page.translated("It is late.")
    kept = page.page.evaluate(
        "JSON.stringify([location.href, document.cookie, {...localStorage}, {...sessionStorage}])"
    )
    assert "secret" not in kept and page.page.context.cookies() == []
    page.page.reload()
    page.page.wait_for_selector("#translate:enabled")
    page.translated("It is late.")
    assert len(page.asked) == 2
