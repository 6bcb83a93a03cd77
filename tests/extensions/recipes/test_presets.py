"""Published numbers that follow from the presets' values."""

import pytest

from t2t_flax.config import resolve
from t2t_flax.config.presets import preset
from t2t_flax.training.optimizer import learning_rate_schedule


def test_the_large_batch_recipe_has_the_published_peak():
    rate = learning_rate_schedule(resolve(preset("mlperf_big")))
    assert max(float(rate(step)) for step in (600, 663, 664, 665, 800)) == pytest.approx(
        4.0e-3, rel=5e-3
    )


def test_algoperfs_baseline_has_its_rates():
    """A linear warm-up and a cosine to 0, joined and counted from 0."""
    rate = learning_rate_schedule(resolve(preset("algoperf_wmt")))
    peak = 0.0017486387539278373
    expected = pytest.approx([0, peak, peak / 2, 0], rel=1e-5)
    assert [float(rate(step)) for step in (1, 2401, 61_201, 120_001)] == expected
