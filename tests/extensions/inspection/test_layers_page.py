"""The page of `inspect --html`: its numbers, and what a browser shows of it."""

import json
import re

import pytest
from helpers.browser import chromium

from t2t_flax.__main__ import main
from t2t_flax.extensions.inspection import layers_page

LAYERS, STEPS = 11, 30
PHONE = 390


def workdir_of(folder, steps=STEPS):
    """A run whose layer 10 takes far larger steps than the others, from update 150 on."""
    lines = []
    for step in range(10, 10 * steps + 1, 10):
        line = {"step": step, "loss": 5.0, "update_ratio/shared_embedding": 1e-3}
        for layer in range(LAYERS):
            fault = 44 if layer == 10 and step >= 150 else 1
            line |= {
                f"update_ratio/encoder_{layer}/self_attention/query": fault * 1e-3 / (1 + layer),
                f"update_ratio/decoder_{layer}/cross_attention/query": 1e-3,
                f"dead_units/encoder_{layer}/feed_forward": layer / 20,
            }
        line["attention_entropy/encoder_0/self_attention/head_0"] = 1.5
        lines.append(line)
    del lines[3]["dead_units/encoder_0/feed_forward"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = workdir_of(tmp_path_factory.mktemp("a<b>run"))
    path = folder / "page.html"
    assert main(["inspect", f"--workdir={folder}", f"--html={path}"]) == 0
    return path


def content(page):
    return json.loads(
        re.search(
            r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), re.S
        )[1]
    )


def test_rows_are_in_the_order_of_the_layers(page):
    data = content(page)
    assert data["steps"] == list(range(10, 10 * STEPS + 1, 10))
    ratios, dead, entropy = data["statistics"]
    assert [each["id"] for each in (ratios, dead, entropy)] == [
        "update_ratio",
        "dead_units",
        "attention_entropy",
    ]
    names = [row["name"] for row in ratios["rows"]]
    assert names[0] == "shared_embedding" and names[11] == "encoder_10/self_attention/query"
    assert names[12] == "decoder_0/cross_attention/query" and len(names) == 1 + 2 * LAYERS
    assert {row["kind"] for row in ratios["rows"][1:12]} == {"encoder/self_attention/query"}
    assert ratios["rows"][11]["values"][-1] == pytest.approx(4e-3)
    assert dead["rows"][0]["values"][3] is None and dead["rows"][5]["values"][0] == 0.25


def test_long_runs_are_thinned_and_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(layers_page, "MOST_UPDATES", 7)
    text = layers_page.layers_page(str(workdir_of(tmp_path)))
    steps = json.loads(re.search(r'json">(.*?)</script>', text, re.S)[1])["steps"]
    assert len(steps) == 7 and steps[0] == 10 and steps[-1] == 10 * STEPS


@pytest.fixture(scope="module")
def browser():
    with chromium() as launched:
        yield launched


@pytest.mark.slow
def test_a_browser_shows_heat_maps_and_curves(browser, page):
    with browser.new_context() as context:
        shown, errors = context.new_page(), []
        shown.on("pageerror", lambda error: errors.append(str(error)))
        shown.on(
            "request", lambda request: request.url.startswith("file:") or errors.append(request.url)
        )
        shown.goto(page.as_uri())
        assert shown.locator("h1 b").count() == 0
        labels, curves = shown.locator("#labels button"), shown.locator("#curves path")
        assert labels.count() == 1 + 2 * LAYERS
        labels.nth(11).click()
        assert (
            "encoder/self_attention/query" in shown.inner_text("#kind") and curves.count() == LAYERS
        )
        assert shown.locator("#curves .chosen").count() == 1
        assert "encoder_10/self_attention/query 0.004" in shown.inner_text("#names")
        colors = shown.evaluate(
            """() => { const c = document.getElementById("heat");
            const at = (x, y) => Array.from(c.getContext("2d").getImageData(x, y, 1, 1).data).join();
            return [c.width, c.height, at(0, 11), at(29, 11), at(0, 10), at(29, 10)]; }"""
        )
        assert colors[:2] == [STEPS, 1 + 2 * LAYERS]
        # The fault is seen, and only there.
        assert colors[2] != colors[3] and colors[4] == colors[5]
        box = shown.locator("#heat").bounding_box()
        shown.mouse.move(
            box["x"] + box["width"] - 2, box["y"] + 11.5 * box["height"] / (1 + 2 * LAYERS)
        )
        assert shown.inner_text("#readout") == "encoder_10/self_attention/query, update 300: 0.004"
        shown.fill("#query", "decoder")
        assert labels.count() == LAYERS
        shown.fill("#query", "nothing of that name")
        assert labels.count() == 0 and curves.count() == 0
        shown.fill("#query", "")
        shown.select_option("#statistic", "dead_units")
        assert labels.count() == LAYERS
        shown.select_option("#statistic", "attention_entropy")
        assert labels.count() == curves.count() == 1
        assert not errors


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_in_both_schemes(browser, page, scheme):
    with browser.new_context(
        viewport={"width": PHONE, "height": 800}, color_scheme=scheme
    ) as context:
        shown = context.new_page()
        shown.goto(page.as_uri())
        assert shown.evaluate("document.documentElement.scrollWidth") <= PHONE
        ink, paper = (
            sum(
                map(
                    int,
                    re.findall(r"\d+", shown.evaluate(f"getComputedStyle(document.body).{name}"))[
                        :3
                    ],
                )
            )
            for name in ("color", "backgroundColor")
        )
        assert (ink < 150 and paper > 600) if scheme == "light" else (ink > 600 and paper < 150)
        assert shown.locator("#heat").bounding_box()["width"] > 150
        label = shown.get_by_role("button", name="encoder_10/self_attention/query")
        assert label.inner_text() == "e10 self query" and label.evaluate(
            "node => node.scrollWidth <= node.clientWidth"
        )
        for control in shown.locator("select, input").all():
            assert control.evaluate("node => node.labels.length") == 1
