"""The small model that the self-test computes in place of the run's."""

import pytest
from helpers.configs import devices_mesh, small_config

from t2t_flax.data.batching.rows import Shape
from t2t_flax.extensions.selftest import probe


@pytest.mark.parametrize("layer, layers", [(4, 4), (0, 2)])
def test_a_layer_that_a_key_names_is_tested_too(layer, layers):
    config = small_config(model=dict(num_decoder_layers=4), alignments=dict(layer=layer))
    made = probe.make_probe(config, devices_mesh(), (37, 37), Shape(length=24, rows=16, micro=3))
    assert made.config.model.num_decoder_layers == layers
