"""The server's page in a real browser: Chromium, the true server, two runs."""

import json
import re
import shutil
import subprocess
import sys
from urllib.parse import urlsplit

import jax
import numpy as np
import pytest
from helpers.browser import chromium
from helpers.processes import environment
from helpers.server_page import answer, answers, ask, hypotheses, pair, shown, stand_in, translate, weights

from t2t_flax.extensions.interop.safetensors_file import read_metadata, read_safetensors, write_safetensors
from t2t_flax.model_forms import run_folder

pytestmark = pytest.mark.slow
MARKUP, WIDTH = "<img src=x onerror=window.ran=1>", 360


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a server with two runs: the package's toy model, and the same with noise in its parameters."""
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        pytest.importorskip(package, reason="needs the extra serve")
    folder = tmp_path_factory.mktemp("served")
    for name, noise in (("first", 0), ("second", 0.3)):
        shutil.copytree(run_folder("pretrained:toy"), folder / name)
        file = folder / name / "model.safetensors"
        params, config = read_safetensors(file)
        rng = np.random.default_rng(0)
        params = jax.tree.map(lambda x, rng=rng, noise=noise: x + noise * x.std() * rng.normal(size=x.shape), params)
        write_safetensors(file, params, config, checkpoint=read_metadata(file)[1])
    runs = [f"--workdir={folder / name}" for name in ("first", "second")]
    command = [sys.executable, "-m", "t2t_flax", "serve", *runs, "--port=0", "--max-batch=1"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as server:
        yield re.fullmatch(r"listening on (http://\S+)\n", server.stdout.readline())[1]
        server.terminate()
        assert server.wait(250) == 0


@pytest.fixture(scope="module")
def browser():
    with chromium() as launched:
        yield launched


@pytest.fixture
def page(browser, address):
    """The page, ready. At the end: it asked this server alone, and the console has no error besides failed requests."""
    with browser.new_context(viewport={"width": 1000, "height": 800}) as context:
        made = context.new_page()
        asked, errors = [], []
        context.on("request", lambda request: asked.append(request.url))
        made.on("pageerror", lambda error: errors.append(str(error)))
        made.on("console", lambda message: message.type == "error" and errors.append(message.text))
        made.goto(address)
        made.wait_for_selector("#translate:enabled", timeout=300_000)
        made.set_default_timeout(200_000)
        yield made
        assert asked and {urlsplit(url).netloc for url in asked} == {urlsplit(address).netloc}
        assert [text for text in errors if not text.startswith("Failed to load resource")] == []
        assert made.evaluate("window.ran") is None


def test_typing_is_enough(page):
    """A pause, and the translations appear as the server wrote and scored them."""
    answered = answers(page, "translate", lambda: page.locator("#text").press_sequentially("It is late."))
    shown(page)
    (line,) = answered["translations"]
    assert line["source"] == "It is late." and len(line["hypotheses"]) == 4
    scores = page.locator(".hypotheses .score").all_inner_texts()
    assert hypotheses(page) == [" ".join(h["text"].split()) or "—" for h in line["hypotheses"]]
    assert [float(text.replace("−", "-")) for text in scores] == [round(h["score"], 3) for h in line["hypotheses"]]
    page.fill("#text", "")
    assert page.is_visible("#empty") and not page.is_visible(".panel")


def test_number_of_translations_and_prefix(page):
    """They go with the request."""
    stand_in(page, "Das Haus", pair(["▁It", "</s>"], ["▁Das", "▁Haus", "</s>"]))
    page.select_option("#n-best", "2")
    page.fill("#prefix", "Das Haus")
    with page.expect_request("**/api/translate") as request:
        ask(page)
    sent = request.value.post_data_json
    assert (sent["n_best"], sent["prefix"]) == (2, ["Das Haus"])


def test_hover_shows_the_weights_of_the_answer(page):
    _, answered = translate(page)
    cross = np.array(answered["cross"]) / 1000
    rows = page.locator(".rows .piece")
    assert rows.count() == len(answered["target_pieces"])
    for row in range(rows.count()):
        rows.nth(row).hover()
        np.testing.assert_allclose(weights(page), cross.mean((0, 1))[row], atol=1e-12)
    for layer, head in np.ndindex(cross.shape[:2]):
        page.get_by_role("radio", name=f"layer {layer + 1}, head {head + 1}").check()
        rows.nth(1).hover()
        np.testing.assert_array_equal(weights(page), cross[layer, head, 1])
    page.get_by_role("radio", name="mean of all").check()
    for kind in ("encoder", "decoder"):
        page.get_by_label("Attention from").select_option(kind)
        rows.nth(1).hover()
        np.testing.assert_allclose(weights(page), (np.array(answered[kind]) / 1000).mean((0, 1))[1], atol=1e-12)


def test_maps_are_drawn_from_the_weights(page):
    """The opacity of each pixel is the weight."""
    _, answered = translate(page)
    drawn = page.locator(".layers canvas").evaluate_all(
        "maps => maps.map((m) => [...m.getContext('2d').getImageData(0, 0, m.width, m.height).data])"
    )
    cross = np.array(answered["cross"]) / 1000
    alpha = np.array(drawn, float).reshape(*cross.shape, 4)[..., 3] / 255
    np.testing.assert_allclose(alpha, cross, atol=0.006)
    color = "m => { const d = m.getContext('2d').getImageData(0, 0, 1, 1).data; return d[0] + d[1] + d[2]; }"
    light = page.locator(".mean canvas").evaluate(color)
    page.emulate_media(color_scheme="dark")
    # The browser tells the page of the change after it has answered.
    page.wait_for_function(
        f"light => ({color})(document.querySelector('.mean canvas')) > light", arg=light, timeout=200_000
    )


def test_keyboard_alone(page):
    """Text, translation, another hypothesis, pieces and heads, without a mouse."""
    press = page.keyboard.press
    page.keyboard.insert_text("The house is red.")
    answered = answers(page, "translate", lambda: press("Control+Enter"))
    shown(page)

    def tab_to(selector):
        for _ in range(20):
            press("Tab")
            if page.locator(f"{selector}:focus").count():
                return
        raise AssertionError(f"Tab does not reach {selector}")

    tab_to(".hypotheses input")
    attention = answers(page, "attention", lambda: press("ArrowDown"))
    assert page.locator(".hypotheses input").nth(1).is_checked()
    assert page.locator(".hypotheses input:focus").count() == 1, "choosing keeps the focus"
    shown(page)
    assert answered["translations"][0]["hypotheses"][1]["text"]

    tab_to(".rows .piece")
    cross = np.array(attention["cross"]) / 1000
    for key, row in (
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("End", -1),
        ("ArrowRight", -1),
        ("Home", 0),
    ):
        press(key)
        np.testing.assert_allclose(weights(page), cross.mean((0, 1))[row], atol=1e-12)
        strongest = attention["source_pieces"][cross.mean((0, 1))[row].argmax()].replace("▁", "")
        said = page.get_by_role("status").nth(1).inner_text().partition("looks at: ")[2]
        assert said.startswith(f"{strongest or '(space)'} ".replace("</s>", "(end)"))
    assert page.locator(".rows .piece[tabindex='0']").count() == 1, "one stop for Tab"

    tab_to(".maps input")
    press("ArrowRight")
    np.testing.assert_array_equal(weights(page), cross[0, 0, 0])


def test_two_runs_side_by_side(page):
    """The words that are not marked are the same in both."""
    page.select_option("#other", "second")
    ask(page, "It is late.\n\nThe house is red.")
    page.locator("figure:visible:not([aria-busy])").nth(1).wait_for()
    assert page.locator(".panel h2").all_inner_texts() == ["first", "second"]
    boxes = [page.locator(".panel").nth(i).bounding_box() for i in range(2)]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] + boxes[0]["width"] < boxes[1]["x"]
    for line in range(2):
        page.locator(".panel").first.locator(".sentences input").nth(line).check()
        assert page.locator(".panel").nth(1).locator(".sentences input").nth(line).is_checked()
        same = []
        for panel in range(2):
            chosen = page.locator(".panel").nth(panel).locator(".hypotheses .text").first
            words = chosen.evaluate(
                "n => [...n.childNodes].filter((c) => c.nodeName !== 'MARK').map((c) => c.data).join('')"
            )
            same.append(words.split())
        assert same[0] == same[1]
        assert page.locator("mark").count() or hypotheses(page, 0)[0] == hypotheses(page, 1)[0]


def test_marked_words_of_known_translations(page):
    page.select_option("#other", "second")
    texts = {"first": "Der alte Hund schläft.", "second": "Der Hund schläft jetzt."}

    def reply(route):
        model = json.loads(route.request.post_data)["model"]
        hypothesis = {"text": texts[model], "score": -1.0, "pieces": []}
        route.fulfill(json={"model": model, "translations": [{"source": "a", "hypotheses": [hypothesis]}]})

    page.route("**/api/translate", reply)
    ask(page)
    page.wait_for_selector("mark")
    assert page.locator("mark").all_inner_texts() == ["alte", "jetzt"]


@pytest.mark.parametrize("status", [429, 500])
def test_errors_of_the_server(page, status):
    """Its text is shown, as text; the reader can try again."""
    page.route("**/api/translate", answer({"error": f"no luck {MARKUP}"}, status))
    ask(page, "It is late.")
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert f"no luck {MARKUP}" in alert.inner_text()
    assert ("busy" in alert.inner_text()) == (status == 429)
    page.unroute("**/api/translate")
    page.get_by_role("button", name="Try again").click()
    shown(page)
    assert not alert.is_visible() and hypotheses(page)


def test_failed_attention_leaves_the_translation(page):
    page.route("**/api/attention", answer({"error": "the source has 400 tokens"}, 400))
    ask(page, "It is late.")
    page.get_by_text("No attention: the source has 400 tokens").wait_for()
    assert len(hypotheses(page)) == 4


def test_server_that_is_still_loading(page):
    page.clock.install()
    page.route("**/api/models", answer({"error": "the models are being loaded"}, 503))
    page.reload()
    page.get_by_text("the models are being loaded").wait_for()
    assert page.is_disabled("#translate")
    page.unroute("**/api/models")
    page.clock.run_for(5000)
    page.wait_for_selector("#translate:enabled")


def test_server_that_has_gone(page):
    page.route("**/api/translate", lambda route: route.abort())
    ask(page, "It is late.")
    page.get_by_text("The server does not answer").wait_for()


def test_newer_text_cancels_the_request(page):
    held = []

    def hold(route):
        if not held:
            held.append(route.request)
        else:
            route.continue_()

    page.route("**/api/translate", hold)
    ask(page, "It is late.")
    page.wait_for_selector(".panel[aria-busy]")
    with page.expect_event("requestfailed", lambda request: request == held[0]):
        ask(page, "The house is red.")
    shown(page)
    assert hypotheses(page) and not page.locator("[aria-busy]").count()


def test_long_line_waits_for_the_button(page):
    page.fill("#text", "It is late. " * 100)
    assert "more than 600 characters" in page.inner_text("#text-note")
    assert not page.locator(".panel").count()
    stand_in(page, "Es ist spät.", pair(["▁It", "</s>"], ["▁Es", "</s>"]))
    answers(page, "translate", lambda: page.click("#translate"))


def test_markup_stays_text(page):
    stand_in(page, MARKUP, pair([MARKUP, "</s>"], ["<b>", MARKUP, "</s>"]))
    ask(page, MARKUP)
    shown(page)
    page.locator(".rows .piece").nth(1).hover()
    assert hypotheses(page) == [MARKUP] and page.locator(".strongest").inner_text().startswith(MARKUP)
    assert page.locator("#results :is(img, b)").count() == 0


def test_right_to_left_text(page):
    """Its pieces run from the right, and the arrow keys with them."""
    stand_in(page, "الوقت متأخر", pair(["▁It", "▁is", "</s>"], ["▁الوقت", "▁متأخر", "</s>"]))
    ask(page)
    shown(page)
    rows = page.locator(".rows .piece")
    lefts = [rows.nth(i).bounding_box()["x"] for i in range(3)]
    assert lefts == sorted(lefts, reverse=True)
    rows.first.focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".rows .shown").inner_text() == "متأخر"
    assert page.locator(".hypotheses .text").evaluate("n => getComputedStyle(n).direction") == "rtl"


def test_phone_needs_no_sideways_scrolling(page):
    page.set_viewport_size({"width": WIDTH, "height": 700})
    page.select_option("#other", "second")
    width = "document.documentElement.scrollWidth"
    pieces = [f"▁{'lang' * 30}", "▁b", *"cdefgh", "</s>"]
    stand_in(page, "lang" * 60, pair(pieces, pieces, heads=16))
    ask(page, "y" * 300)
    page.locator(".layer .head").nth(31).wait_for()
    assert page.evaluate(width) <= WIDTH
    reach = page.locator("main *:visible").evaluate_all(
        "nodes => Math.max(...nodes.map((n) => n.getBoundingClientRect().right))"
    )
    assert reach <= WIDTH


def test_every_control_has_a_name(page):
    from playwright.sync_api import expect

    page.select_option("#other", "second")
    translate(page)
    controls = page.locator("a, button, input, select, textarea").locator("visible=true")
    assert controls.count() > 20
    for control in controls.all():
        expect(control).to_have_accessible_name(re.compile(r"\S"))
    tree = page.locator("main").aria_snapshot()
    for name in (
        'textbox "English"',
        'combobox "Compare with"',
        'toolbar "Translation, piece by piece"',
        'region "first"',
    ):
        assert name in tree
    assert page.locator("h1").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(page, scheme):
    """4.5 to 1 for text, also on the strongest shade; 3 to 1 for borders of fields (WCAG 2.2, 1.4.3 and 1.4.11)."""
    page.emulate_media(color_scheme=scheme)

    def luminance(name):
        value = page.evaluate("name => getComputedStyle(document.documentElement).getPropertyValue(name)", name).strip()
        channels = np.array([int(value[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    pairs = {
        ("--ink", "--paper"): 7, ("--soft", "--paper"): 4.5, ("--accent", "--paper"): 4.5, ("--ink", "--shade"): 4.5,
        ("--on-accent", "--accent"): 4.5, ("--ink", "--mark"): 4.5, ("--warning", "--paper"): 4.5, ("--edge", "--paper"): 3,
    }  # fmt: skip
    for names, least in pairs.items():
        low, high = sorted(map(luminance, names))
        assert (high + 0.05) / (low + 0.05) >= least, names


def test_reduced_motion(page):
    page.emulate_media(reduced_motion="reduce")
    translate(page)
    moving = page.locator("*").evaluate_all(
        "nodes => nodes.filter((n) => getComputedStyle(n).transitionProperty !== 'none').length"
    )
    assert moving == 0


def test_content_security_policy(browser, address):
    """Scripts, styles and requests of this server alone; a script in the page does not run."""
    with browser.new_context() as context:
        page = context.new_page()
        policy = page.goto(address).headers["content-security-policy"]
        for rule in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"):
            assert rule in policy.split("; ")
        assert "unsafe" not in policy
        with page.expect_event("console", lambda message: "Content Security Policy" in message.text):
            page.evaluate(
                "document.head.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))"
            )
        assert page.evaluate("window.ran") is None
        page.get_by_role("link", name="API").click()
        page.wait_for_url("**/docs")


def test_a_model_of_several_languages_has_a_choice(page):
    """The chosen target language goes with every request, and names the translation's language."""
    assert page.locator("#target-field").is_hidden()

    def with_languages(route):
        models = route.fetch().json()
        route.fulfill(json=[model | {"target": "mul", "target_languages": ["de", "fr"]} for model in models])

    page.route("**/api/models", with_languages)
    stand_in(page, "Il est tard.", pair(["▁It", "</s>"], ["▁Il", "</s>"]))
    page.reload()
    page.wait_for_selector("#translate:enabled", timeout=300_000)
    assert page.locator("#target option").all_inner_texts() == ["German", "French"]
    page.select_option("#target", "fr")
    with page.expect_request("**/api/translate") as translation, page.expect_request("**/api/attention") as attention:
        ask(page)
    assert {request.value.post_data_json["target_language"] for request in (translation, attention)} == {"fr"}
    assert page.locator(".hypotheses .text").first.get_attribute("lang") == "fr"
    assert "to French" in page.locator(".facts").first.inner_text()
