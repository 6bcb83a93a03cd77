"""The documentation builds as a site, and each of its links leads somewhere."""

import pytest
from helpers.documented_commands import ROOT

pytestmark = pytest.mark.slow


def test_the_site_builds_with_all_pages_and_without_a_broken_link(tmp_path):
    pytest.importorskip("material", reason="needs mkdocs-material (extra docs)")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {path.name for path in tmp_path.iterdir()}
