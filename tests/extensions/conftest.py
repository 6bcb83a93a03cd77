"""Tests of extensions are a group of their own, `python -m pytest -m extension`; the default suite has those marked `smoke`."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("smoke"):
            item.add_marker("extension")
