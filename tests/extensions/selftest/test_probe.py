"""The small model that the self-test computes in place of the run's."""

import pytest
from helpers.configs import devices_mesh, small_config

from t2t_flax.data.batching.batches import Shape
from t2t_flax.extensions.selftest import probe


@pytest.mark.parametrize("key", ["alignments.layer", "constraints.coverage_layer"])
def test_a_layer_that_a_key_names_is_tested_too(key):
    group, name = key.split(".")
    pytest.importorskip(f"t2t_flax.extensions.{group}")
    config = small_config(model=dict(num_decoder_layers=4), **{group: {name: 4}})
    if group == "constraints":
        config = config.with_values({"constraints.coverage": 0.2})
    assert (
        probe.make_probe(
            config, devices_mesh(), (37, 37), Shape(length=24, rows=16, micro=3)
        ).config.model.num_decoder_layers
        == 4
    )
    plain = small_config(model=dict(num_decoder_layers=4))
    assert (
        probe.make_probe(
            plain, devices_mesh(), (37, 37), Shape(length=24, rows=16, micro=3)
        ).config.model.num_decoder_layers
        == 2
    )
