"""The training examples in docs/extending.md, each added to its table and trained with."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import documented_modules
from helpers.configs import devices_mesh, model_and_state, random_pairs, rows_alone, small_config
from helpers.refusals import refused

from t2t_flax.config import resolve, schema, to_config_dict
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.tasks import lower_is_better, task_of
from t2t_flax.training import losses
from t2t_flax.training.optimizer import learning_rate_schedule
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.train_step import jit_train_step

TABLES = (
    losses.TOKEN_METRICS, schema.HIGHER_IS_BETTER,
)  # fmt: skip


@pytest.fixture
def entropy(monkeypatch):
    """Imports the example of a metric; the tables are restored afterwards."""
    for table in TABLES:
        monkeypatch.setitem(table, "entropy", None)
        del table["entropy"]
    documented_modules.use(documented_modules.EXAMPLES / "entropy.py", monkeypatch)


def train(config, updates=4):
    mesh, pairs = devices_mesh(fsdp=2), random_pairs(8, longest=12)
    model, tx, state, shardings = model_and_state(config, mesh)
    rows = rows_alone(pairs, 16)
    step = jit_train_step(config, model, tx, parametrization_of(config), mesh, shardings)
    evaluate = jax.jit(functools.partial(losses.validation_sums, config, model))
    with mesh_lib.use(mesh):
        metrics = []
        for _ in range(updates):
            state, last = step(state, {name: x.reshape(2, 4, 16) for name, x in rows.items()})
            metrics.append(last)
        return metrics, evaluate(state.params, rows)


@pytest.mark.slow
def test_schedule(monkeypatch, tmp_path):
    documented_modules.load("Extending t2t_flax", monkeypatch, tmp_path)
    keys = {"schedule": "inverse", "peak_lr": 1e-2, "warmup_steps": 10}
    config = small_config().with_values({f"optimizer.{k}": v for k, v in keys.items()})
    resolve(to_config_dict(config))
    rate = learning_rate_schedule(config)
    expected = [1e-2 * 5 / 10, 1e-2, 1e-2 * 10 / 60, 1e-3]
    np.testing.assert_allclose([float(rate(t)) for t in (5, 10, 60, 100)], expected, rtol=1e-6)
    with refused("lr_scale", "2.0", "config.optimizer.schedule"):
        resolve(to_config_dict(config.with_values({"optimizer.lr_scale": 2.0})))


@pytest.mark.slow
def test_optimizer(monkeypatch, tmp_path):
    documented_modules.load("Extending t2t_flax", monkeypatch, tmp_path)
    keys = dict(name="nesterov", schedule="constant", peak_lr=0.1, warmup_steps=1)
    resolve(
        to_config_dict(small_config().with_values({f"optimizer.{k}": v for k, v in keys.items()}))
    )
    metrics, _ = train(small_config(optimizer=keys, model=dict(dropout=0.0)), updates=8)
    assert float(metrics[-1]["loss"]) < float(metrics[0]["loss"]) - 0.05


@pytest.mark.parametrize("chunk", [0, 5])
@pytest.mark.slow
def test_metric(entropy, chunk):
    """Summed over microbatches, shards and chunks."""
    metrics, sums = train(small_config(loss=dict(logits_chunk_size=chunk)))
    assert all(0 < float(m["entropy"]) < np.log(40) for m in metrics)
    assert 0 < float(sums["entropy"] / sums["tokens"]) < np.log(40)
    assert set(sums) == {"loss", "nll", "accuracy", "entropy", "tokens"} and jnp.isfinite(
        sums["nll"]
    )
    assert task_of(small_config(eval=dict(metric="entropy")))
    assert lower_is_better("valid_entropy")
