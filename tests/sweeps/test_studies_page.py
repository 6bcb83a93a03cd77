"""docs/studies.md is what its script writes from the committed records, and says no more than they do."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies_page import _sure, effect

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date(tmp_path):
    page = tmp_path / "studies.md"
    subprocess.run([sys.executable, "-m", "benchmarks.studies", f"--page={page}"], check=True, cwd=ROOT)
    assert page.read_text() == (ROOT / "docs" / "studies.md").read_text(), "run python -m benchmarks.studies"


@pytest.mark.parametrize("of, paper, ours, sure, told", [
    ("BLEU", -0.9, -2.0, True, "**the same way**"),
    ("BLEU", -0.9, 2.0, True, "**the other way**"),
    ("BLEU", -0.9, -2.0, False, "inconclusive"),
    ("BLEU", -0.1, -2.0, True, "none in the paper, one here"),
    ("BLEU", -0.1, -2.0, False, "none in the paper, none sure here"),
    ("ln PPL", 0.07, 0.01, True, "**the same way**"),
    ("ln PPL", 0.0, 0.01, False, "none in the paper, none sure here"),
])  # fmt: skip
def test_an_effect_is_told_only_where_it_is_sure(of, paper, ours, sure, told):
    assert effect(of, paper, ours, sure) == told


def test_two_seeds_must_agree():
    assert _sure(np.array([0.10, 0.12])) and not _sure(np.array([0.01, 0.12]))
    assert not _sure(np.array([-0.1, 0.1])) and not _sure(np.array([0.3]))
