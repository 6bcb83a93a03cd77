"""Parameters of the base model with one of its parts replaced."""

import pytest
from conformance.test_small_statements import count, counted_by_hand

from t2t_flax.config import Model


@pytest.mark.parametrize(
    ("keys", "millions"),
    [
        (dict(feed_forward="gated", d_ff=1365), 63.01),  # two thirds of d_ff: as many parameters as dense
        (dict(norm_type="rmsnorm", norm_placement="pre", position="rotary"), 63.03),
        (dict(position="alibi"), 63.05),
    ],
    ids=str,
)
def test_parameters_of_the_base_model_with_one_part_replaced(keys, millions):
    total = count(Model(**keys), 37_000)
    assert total == counted_by_hand(Model(**keys), 37_000)
    assert total / 1e6 == pytest.approx(millions, abs=0.006)
