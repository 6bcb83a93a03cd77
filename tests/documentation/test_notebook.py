"""docs/attention.ipynb runs as written, and prints the text that it shows."""

import contextlib
import io
import json
import re

import pytest
from helpers.documented_commands import ROOT

NOTEBOOK = ROOT / "docs" / "attention.ipynb"


@pytest.mark.extension
def test_cells_run_and_print_the_text_that_the_notebook_shows(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    pytest.importorskip("matplotlib")
    names: dict = {}
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if "outputs" in cell]
    for cell in cells:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec("".join(cell["source"]), names)
        shown = "".join(line for output in cell["outputs"] for line in output.get("text", ()))
        assert without_digits(printed.getvalue()) == without_digits(shown)
    assert names["figure"].axes


def without_digits(text: str) -> str:
    """Numbers differ in their last digits between machines."""
    return re.sub(r"-?\d+\.\d+", "", text).replace(" ", "")
