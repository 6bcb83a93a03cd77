"""Links, commands and config keys in the documentation exist."""

import re
from pathlib import Path

import pytest

from t2t_flax.config.schema import fields
from t2t_flax.registry import COMMANDS, load_extensions

ROOT = Path(__file__).parents[1]
PAGES = sorted(ROOT.glob("docs/*.md")) + [ROOT / "README.md", ROOT / "launch" / "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_resolve(page):
    for target in re.findall(r'(?:\]\(|src=")([^)"]+)', page.read_text()):
        if target.startswith("http"):
            continue
        path, _, name = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{page.name}: {target}"
        if name and file.suffix == ".py":
            assert f"def {name}(" in file.read_text(), f"{page.name}: no test {name} in {path}"
        elif name and file.suffix == ".md":
            assert name in anchors(file.read_text()), f"{page.name}: no heading {name} in {path}"


def anchors(text: str) -> set[str]:
    """The headings of a page as GitHub links to them."""
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_named_keys_exist(page):
    groups = {key.split(".")[0] for key in fields()}
    text = re.split("\n#+ Removed\n", page.read_text())[0]
    for key in re.findall(r"`(?:--config\.)?([a-z]+\.[a-z_0-9]+)[^`]*`", text):
        if key.split(".")[0] in groups and not key.endswith(
            (".py", ".json", ".md", ".safetensors", ".bin")
        ):
            assert key in fields(), f"{page.name} names {key}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_named_commands_exist(page):
    load_extensions()
    for command in re.findall(r"python -m t2t_flax ([a-z_]+)", page.read_text()):
        assert command in COMMANDS, f"{page.name} names {command}"


@pytest.mark.parametrize("name", ["api.md", "keys.md"])
def test_reference_is_generated_from_the_code(name):
    from tools.reference import DOCS, pages

    assert (DOCS / name).read_text() == pages()[name], "run `python -m tools.reference`"
