"""The shipped configs of the paper's base and big models initialize and train one update on CPU."""

from pathlib import Path

import jax
import numpy as np
import pytest
from helpers.configs import devices_mesh, random_pairs, rows_alone

from t2t_flax.config import load_config
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.train_state import abstract_state, count_params, init_state, make_model
from t2t_flax.training.train_step import jit_train_step

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.drill
@pytest.mark.timeout(1200)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("wmt14_ende.py:base", 63_045_632),
        ("wmt14_ende.py:big", 214_171_648),
        ("wmt14_enfr.py:base", 60_485_632),
        ("wmt14_enfr.py:big", 209_051_648),
    ],
)
def test_paper_model_initializes_and_trains(name, parameters):
    config = load_config(str(CONFIGS / name))
    vocab = config.data.vocab_size
    mesh = devices_mesh()
    model, tx = make_model(config, vocab, vocab), make_optimizer(config, parametrization_of(config))
    abstract, _ = abstract_state(config, model, tx, parametrization_of(config), mesh)
    assert count_params(abstract.params, config, vocab, vocab) == parameters
    if "enfr" in name:
        return  # the same models with another vocabulary and dropout
    state, shardings = init_state(config, model, tx, parametrization_of(config), mesh)
    rows = {
        k: jax.numpy.asarray(x[None]) for k, x in rows_alone(random_pairs(2, longest=9), 12).items()
    }
    before = np.asarray(state.params["decoder_5"]["cross_attention"]["query"]["kernel"])
    with mesh_lib.use(mesh):
        state, metrics = jit_train_step(
            config, model, tx, parametrization_of(config), mesh, shardings
        )(state, rows)
    assert 8 < float(metrics["nll"]) < 14  # about log(37,000) = 10.5
    assert float(metrics["learning_rate"]) == pytest.approx(
        config.model.d_model**-0.5 * 4000**-1.5, rel=1e-5
    )
    assert int(state.step) == 1
    assert not np.array_equal(
        before, state.params["decoder_5"]["cross_attention"]["query"]["kernel"]
    )
