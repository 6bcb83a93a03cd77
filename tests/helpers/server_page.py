"""What the tests of the server's page do on it, read from it, and answer in the place of the server."""

import numpy as np


def answers(page, name, act):
    """What the server answers to /api/`name` while `act` is done."""
    with page.expect_response(f"**/api/{name}") as response:
        act()
    return response.value.json()


def ask(page, text="a"):
    page.fill("#text", text)
    page.click("#translate")


def shown(page):
    """Waits for the attention, which comes last."""
    page.wait_for_selector("figure:visible:not([aria-busy])")


def translate(page, text="It is late."):
    """The answers of /api/translate and /api/attention for a text."""
    with page.expect_response("**/api/attention") as attention:
        translations = answers(page, "translate", lambda: ask(page, text))
    shown(page)
    return translations["translations"], attention.value.json()


def weights(page):
    """The weight of each source piece as the page shows it."""
    found = page.locator(".columns .piece").evaluate_all("pieces => pieces.map((p) => [p.dataset.weight, p.innerText])")
    for weight, text in found:
        number = text.rpartition("\n")[2]
        assert not number.isdigit() or abs(int(number) - 100 * float(weight)) <= 0.5
    return np.array([float(weight) for weight, _ in found])


def hypotheses(page, panel=0):
    return page.locator(".panel").nth(panel).locator(".hypotheses .text").all_inner_texts()


def answer(body, status=200):
    """A handler of requests that answers so."""
    return lambda route: route.fulfill(status=status, json=body)


def pair(source, target, heads=2):
    """An answer of /api/attention with random weights of one layer."""
    rng = np.random.default_rng(0)
    sides = {"cross": (target, source), "encoder": (source, source), "decoder": (target, target)}
    maps = {kind: rng.dirichlet(np.ones(len(b)), (1, heads, len(a))).tolist() for kind, (a, b) in sides.items()}
    return {"model": "first", "source_pieces": source, "target_pieces": target, **maps}


def stand_in(page, text, attention):
    """The server's next answers, for texts that the model does not write."""
    translations = [{"source": "a", "hypotheses": [{"text": text, "score": -1.0, "pieces": []}]}]
    page.route("**/api/translate", answer({"model": "first", "translations": translations}))
    page.route("**/api/attention", answer(attention))
