"""Any accepted model, loss and optimizer keys give a train step that can be traced."""

import typing

import jax
import numpy as np
import pytest
from helpers.configs import devices_mesh
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax.config import Config, from_json, resolve, to_json
from t2t_flax.config.schema import fields
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.errors import UserError
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.train_state import abstract_state, make_model
from t2t_flax.training.train_step import make_train_step

KEYS = [key for key in fields() if key.split(".")[0] in ("model", "optimizer", "loss")]
KEYS += ["train.precision", "train.remat"]
LARGEST = 16  # for sizes, so that tracing is fast


def values(key: str) -> st.SearchStrategy:
    """Valid values of `key` on its own, with sizes up to LARGEST."""
    item = fields()[key]
    meta, kinds = item.metadata, typing.get_args(item.type) or (item.type,)
    if meta["choices"]:
        return st.sampled_from(sorted(meta["choices"]))
    if bool in kinds:
        return st.booleans()
    low, high = meta["low"] or 0, meta["high"]
    if int in kinds:
        return st.integers(low, min(high or LARGEST, max(low, LARGEST)))
    numbers = st.floats(low, 10.0 if high is None else min(high, 10.0))
    return numbers | st.none() if type(None) in kinds else numbers


@st.composite
def configs(draw) -> Config | None:
    """A tiny model with up to four keys changed; None if the combination is refused."""
    tiny = dict(
        num_encoder_layers=1,
        num_decoder_layers=1,
        d_model=8,
        d_ff=16,
        num_heads=2,
        pad_vocab_to_multiple=8,
    )
    groups = {
        "model": tiny,
        "data": dict(max_length=16, batch_tokens=64),
        "train": {},
        "optimizer": {},
        "loss": {},
    }
    for key in draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=4, unique=True)):
        group, name = key.split(".")
        groups[group][name] = draw(values(key), label=key)
    try:
        return resolve(groups)
    except UserError:
        return None


@pytest.mark.slow
@settings(max_examples=25)
@given(configs())
def test_every_accepted_config_can_be_traced(config):
    if config is None:
        return
    assert from_json(to_json(config)) == config
    mesh, batch = devices_mesh(), {}
    for side in ("source", "target"):
        batch |= {
            side + part: jax.ShapeDtypeStruct((2, 2, 12), np.int32)
            for part in ("", "_segments", "_positions")
        }
    model, tx = make_model(config, 37, 37), make_optimizer(config, parametrization_of(config))
    state, _ = abstract_state(config, model, tx, parametrization_of(config), mesh)
    with mesh_lib.use(mesh):
        step = make_train_step(config, model, tx, parametrization_of(config), mesh)
        after, metrics = jax.eval_shape(step, state, batch)
    shapes = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)  # noqa: E731
    assert shapes(after) == shapes(state)
    assert all(x.shape == () and x.dtype == np.float32 for x in metrics.values())
