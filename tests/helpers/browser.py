"""Chromium, driven by playwright; tests that need it are skipped where either is missing."""

import contextlib
import shutil

import pytest

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@contextlib.contextmanager
def chromium():
    """A running browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if program is None:
        pytest.skip("needs Chromium")
    with playwright.sync_playwright() as driver:
        with driver.chromium.launch(executable_path=program, args=FLAGS) as launched:
            yield launched
