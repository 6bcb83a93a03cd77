"""Tests of extensions are a group of their own, `python -m pytest -m extension`.

The default suite has those marked `smoke`.
"""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path, config):
    """Skip the import of files without a smoke test where only smoke tests are selected."""
    if collection_path.name.startswith("test_") and "not extension" in config.option.markexpr:
        return "mark.smoke" not in collection_path.read_text() or None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("smoke"):
            item.add_marker("extension")
