"""docs/studies.md is generated from the committed records and claims only significant effects."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies_page import Effect, effect, to_base

ROOT = Path(__file__).parents[3]


def test_studies_page_is_up_to_date(tmp_path):
    page = tmp_path / "studies.md"
    subprocess.run([sys.executable, "-m", "benchmarks.studies", f"--page={page}"], check=True, cwd=ROOT)
    assert page.read_text() == (ROOT / "docs" / "studies.md").read_text(), "run python -m benchmarks.studies"


@pytest.mark.parametrize("of, paper, ours, p_value, verdict", [
    ("BLEU", -0.9, -2.0, 0.01, "**same direction**"),
    ("BLEU", -0.9, 2.0, 0.01, "**opposite direction**"),
    ("BLEU", -0.9, -2.0, 0.05, "inconclusive"),
    ("BLEU", -0.1, -2.0, 0.01, "none in the paper, significant here"),
    ("BLEU", -0.1, -2.0, 0.5, "none in the paper, not significant here"),
    ("ln PPL", 0.07, 0.01, 0.01, "**same direction**"),
    ("ln PPL", 0.0, 0.01, 0.5, "none in the paper, not significant here"),
])  # fmt: skip
def test_effects_are_claimed_only_if_significant(of, paper, ours, p_value, verdict):
    assert effect(of, paper, Effect(ours, ours - 1, ours + 1, p_value)) == verdict


def test_effect_is_the_difference_of_means_over_seeds():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(5, 1)) + rng.normal(size=(5, 3))
    for result, row in zip(to_base(scores), scores[1:], strict=True):
        assert result.difference == pytest.approx(row.mean() - scores[0].mean())
        assert result.low < result.difference < result.high


def test_interval_excludes_zero_exactly_if_significant():
    rng = np.random.default_rng(3)
    for _ in range(10):
        for result in to_base(rng.normal(size=(8, 3)) + 2 * rng.normal(size=(8, 1))):
            assert (result.p_value < 0.05) == (not result.low <= 0 <= result.high)
