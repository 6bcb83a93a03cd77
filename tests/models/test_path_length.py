"""Table 1 of the paper, measured: path lengths and dependent chains of the layer types."""

import pytest

from benchmarks.layer_types import dependent_chain, layers_to_connect, path_formula, path_length
from t2t_flax.config import Model


def shape(**keys) -> Model:
    return Model(d_model=8, num_heads=2, **keys)


@pytest.mark.parametrize(
    ("keys", "n", "path"),
    [
        (dict(), 64, 1),
        (dict(attention_window=17), 64, 8),
        (dict(attention_window=3), 40, 39),
        (dict(mixer="conv", conv_kernel_size=3), 64, 63),
        (dict(mixer="conv", conv_kernel_size=7), 64, 21),
        (dict(mixer="dilated_conv", conv_kernel_size=3), 64, 4),
        (dict(mixer="dilated_conv", conv_kernel_size=7), 64, 3),
        (dict(mixer="lstm"), 20, 20),
        (dict(mixer="gru"), 20, 20),
    ],
)
def test_measured_path_length_equals_the_formula(keys, n, path):
    """Dependence is taken from one layer's Jacobian and propagated until every position reaches every other."""
    assert path_formula(shape(**keys), n) == path == path_length(shape(**keys), n)


def test_local_layers_needed_for_256_positions():
    """Section 4: r positions of 256 connect in ceil(255 / ((r - 1) / 2)) layers."""
    assert [path_formula(shape(attention_window=r), 256) for r in (9, 17, 65)] == [64, 32, 8]


@pytest.mark.parametrize("mixer", ["attention", "lstm", "gru", "conv", "dilated_conv"])
def test_only_recurrence_has_n_sequential_steps(mixer):
    recurrent = mixer in ("lstm", "gru")
    assert [dependent_chain(shape(mixer=mixer), n) for n in (8, 50)] == ([8, 50] if recurrent else [1, 1])
    if recurrent:
        assert layers_to_connect(shape(mixer=mixer), 12) == 1
