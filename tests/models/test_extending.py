"""The model examples in README.md and docs/extending.md, each added to its table, trained and decoded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import documented_modules
from helpers.configs import model_and_state, random_pairs, rows_alone, small_config

from t2t_flax.config import resolve
from t2t_flax.config.presets import preset

EXAMPLES = {
    "cosine.py": dict(attention_score="cosine", activation="relu_squared", norm_type="max_norm"),
    "clipped_distance.py": dict(position="clipped_distance"),
    "running_mean.py": dict(mixer="running_mean"),
    "README.md": dict(feed_forward="output_gate"),
}


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(name, marks=[] if name == "clipped_distance.py" else [pytest.mark.slow])
        for name in EXAMPLES
    ],
)
def test_documented_example_trains_and_decodes(example, monkeypatch, tmp_path):
    keys = EXAMPLES[example]
    if example == "README.md":
        page = documented_modules.ROOT / example
        documented_modules.load("Add a type of layer", monkeypatch, tmp_path, page)
    else:
        documented_modules.use(documented_modules.EXAMPLES / example, monkeypatch)
    config = preset("toy")
    config.model.update(keys)
    resolve(config)  # the names are choices of the keys
    model, _, state, _ = model_and_state(small_config(model=keys | dict(dropout=0.0)))
    pairs = random_pairs(3, longest=12)
    batch, params = rows_alone(pairs, 16), {"params": state.params}

    def nll(p):
        log_p = jax.nn.log_softmax(model.apply(p, batch))
        return -jnp.take_along_axis(log_p, batch["target"][..., None], -1).sum(), log_p

    (_, log_p), grads = jax.jit(jax.value_and_grad(nll, has_aux=True))(params)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))
    start = jax.jit(lambda source: model.apply(params, source, 1, 16, method="start_cache"))
    cache = start(batch["source"])
    step = jax.jit(lambda *args: model.apply(params, *args, method="decode_step"))
    for position in range(3):
        tokens_BxK = (
            batch["target"][:, position - 1 : position] if position else np.zeros((3, 1), np.int32)
        )
        logits, cache = step(tokens_BxK, jnp.int32(position), cache)
        for row, (_, target) in enumerate(pairs):
            if position < len(target):
                np.testing.assert_allclose(
                    jax.nn.log_softmax(logits[row, 0]), log_p[row, position], atol=3e-5
                )
