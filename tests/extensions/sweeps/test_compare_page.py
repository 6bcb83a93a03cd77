"""The page of `compare --html`: its counts, and what a browser shows of it."""

import json
import re

import pytest
from helpers.browser import chromium
from helpers.records import record
from helpers.refusals import refused_command

from t2t_flax.__main__ import main
from t2t_flax.extensions.sweeps.curves import short_names

REFERENCES = [
    "the cat sat on the mat",
    "a dog",
    "</script><b>bold</b> & <i>",
    *(f"line {n} of the text" for n in range(117)),
]
WORSE = ["the dog sat on the mat", "a dog", "x", *(f"line {n} of the text" for n in range(117))]
BETTER = [
    "the cat sat on the mat",
    "a cow",
    "</script><b>bold</b> & <i>",
    *(f"line {n} of a text" for n in range(117)),
]
TAGS = ["news", "chat\u2028room", "news", *["lines"] * 117]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    a, b = (
        record(folder, name, lines, REFERENCES)
        for name, lines in (("worse", WORSE), ("better", BETTER))
    )
    (folder / "tags").write_text("".join(f"{tag}\n" for tag in TAGS))
    path = folder / "page.html"
    assert main(["compare", str(a), str(b), f"--html={path}", f"--tags={folder / 'tags'}"]) == 0
    return path


def content(page):
    return json.loads(
        re.search(
            r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), re.S
        )[1]
    )


def test_systems_are_named_without_the_folders_they_share(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert short_names(["runs/a/eval/test-5.json", "runs/b/eval/test-7.json"]) == [
        "a/eval/test-5",
        "b/eval/test-7",
    ]
    assert short_names([".", "../b"]) == [tmp_path.name, "b"]


def test_counts_by_length_and_tag(page):
    data = content(page)
    assert data["metric"] == "chrF" and [s["ref"] for s in data["sentences"]] == [
        [line] for line in REFERENCES
    ]
    groups = {group["name"]: group for group in data["groups"]}
    counts = {
        name: (group["better"], group["equal"], group["worse"]) for name, group in groups.items()
    }
    assert counts == {
        "1 to 10": (2, 0, 118),
        "news": (2, 0, 0),
        "chat\u2028room": (0, 0, 1),
        "lines": (0, 0, 117),
    }
    assert groups["news"]["means"][1] == 100.0


def test_lines_have_their_numbers_and_tags_in_the_test_set(tmp_path):
    """Also where some lines of it are not scored."""
    paths = [
        record(tmp_path, name, lines[:3], REFERENCES[:3])
        for name, lines in (("a", WORSE), ("b", BETTER))
    ]
    for path in paths:
        stored = json.loads(path.read_text())
        stored["data"]["not_scored"] = {"2": "without_source", "4": "without_reference"}
        path.write_text(json.dumps(stored))
    (tmp_path / "tags").write_text("one\ntwo\nthree\nfour\nfive\n")
    assert (
        main(
            [
                "compare",
                *map(str, paths),
                f"--html={tmp_path / 'page'}",
                f"--tags={tmp_path / 'tags'}",
            ]
        )
        == 0
    )
    sentences = content(tmp_path / "page")["sentences"]
    assert [(one["n"], one["tag"]) for one in sentences] == [(1, "one"), (3, "three"), (5, "five")]


def test_invalid_input_is_refused_before_the_page_is_written(page, tmp_path):
    a, b = (str(page.parent / f"{name}.json") for name in ("worse", "better"))
    (tmp_path / "short").write_text("news\n")
    for flags, name in (
        ([b, a, b, f"--html={tmp_path / 'x.html'}"], "--html"),
        ([a, b, f"--html={tmp_path / 'x.html'}", f"--tags={tmp_path / 'short'}"], "short"),
        ([a, b, f"--html={tmp_path / 'x.html'}", f"--tags={tmp_path / 'none'}"], "none"),
        ([a, b, f"--tags={tmp_path / 'short'}"], "--html=FILE.html,"),
        ([a, b, f"--html={tmp_path}"], "--html"),
    ):
        refused_command(["compare", *flags], name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["short"]


@pytest.mark.slow
def test_a_browser_orders_and_filters_sentences(page):
    with chromium() as browser, browser.new_context() as context:
        shown, errors = context.new_page(), []
        shown.on("pageerror", lambda error: errors.append(str(error)))
        shown.on(
            "request", lambda request: request.url.startswith("file:") or errors.append(request.url)
        )
        shown.goto(page.as_uri())
        rows = shown.locator("#sentences tr")
        assert rows.count() == 100 and "100 of 120 sentences, chrF of each" in shown.inner_text(
            "#shown"
        )
        first = rows.nth(0).inner_text()
        assert "</script><b>bold</b> & <i>" in first and "+" in first
        assert shown.locator("#sentences b, #sentences i").count() == 0
        shown.select_option("#order", "loss")
        assert "a cow" in rows.nth(0).inner_text()
        assert rows.nth(0).locator(".b mark").all_inner_texts() == ["cow"]
        shown.select_option("#order", "number")
        assert rows.nth(0).inner_text().startswith("1")
        shown.click("#more")
        assert rows.count() == 120
        shown.locator("tr.group", has_text="chat").click()
        assert rows.count() == 1 and "a dog" in rows.nth(0).inner_text()
        shown.locator("tr.group", has_text="chat").click()
        shown.fill("#query", "CAT sat")
        assert rows.count() == 1
        assert not errors
