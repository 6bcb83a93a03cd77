"""The closed list covers all counted sizes with few shapes and little padding."""

import pytest
from helpers.update_checks import check_sizes

from t2t_flax.data.batching.batch_sampler import BatchSampler


@pytest.mark.parametrize("batching", ["packed", "buckets"])
def test_every_counted_update_gets_the_cheapest_size(batching):
    check_sizes(BatchSampler, batching)
