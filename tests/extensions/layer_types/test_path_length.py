"""Table 1 of the paper, measured: path lengths and dependent chains of the layer types."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_flax.config import Model
from t2t_flax.extensions.layer_types import LayerTypes
from t2t_flax.models.attention import MixerInputs, make_mixer


def path_formula(config: Model, n: int) -> int:
    """Number of layers to connect the ends of n positions; for recurrent layers the number of steps."""
    if config.mixer in ("lstm", "gru"):
        return n
    if config.mixer == "attention":
        return 1
    keys = LayerTypes.of(config)
    if config.mixer == "local_attention":
        return math.ceil((n - 1) / (keys.window // 2))
    if config.mixer == "conv":
        return math.ceil((n - 1) / (keys.conv_kernel_size // 2))
    layers = 1
    while keys.conv_kernel_size**layers < n:
        layers += 1
    return layers


def is_causal(config: Model) -> bool:
    """Whether the layer is measured in its causal form: recurrent layers and dilated convolutions."""
    return config.mixer in ("lstm", "gru", "dilated_conv")


@functools.cache
def layer_of(config: Model, depth: int = 0) -> tuple[Callable, Any]:
    """(function of (params, x [B, n, D]), params) of a mixer; each row is one segment."""
    module = make_mixer(config, jnp.dtype("float32"), causal=is_causal(config), depth=depth)

    def one_segment(x):
        positions = jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape[:2])
        return x, MixerInputs(jnp.ones(x.shape[:2], jnp.int32), positions)

    init = jax.jit(lambda key: module.init(key, *one_segment(jnp.zeros((1, 4, config.d_model)))))
    return lambda params, x: module.apply(params, *one_segment(x)), init(jax.random.key(0))


def dependence(config: Model, n: int, depth: int = 0) -> np.ndarray:
    """bool [n, n]: whether output i of a layer depends on input j, from its Jacobian at a random point."""
    apply, params = layer_of(config, depth)
    x, direction = (jax.random.normal(jax.random.key(i), (*s, config.d_model)) for i, s in ((1, (n,)), (2, ())))
    jacobian = jax.jit(jax.jacrev(lambda x: apply(params, x[None])[0] @ direction))(x)
    return np.asarray(jnp.abs(jacobian).max(-1) > 0)


def layers_to_connect(config: Model, n: int) -> int:
    """Number of layers until every output depends on every input (causal layers: on every earlier input)."""
    goal = np.tril(np.ones((n, n), bool)) if is_causal(config) else np.ones((n, n), bool)
    reach, layers, single = np.eye(n, dtype=bool), 0, dependence(config, n)
    while not (reach == goal).all():
        if layers > n:
            raise RuntimeError(f"{config.mixer}: {n} layers do not connect {n} positions")
        step = dependence(config, n, layers) if config.mixer == "dilated_conv" else single
        reach, layers = step.astype(np.int32) @ reach > 0, layers + 1
    return layers


def dependent_chain(config: Model, n: int) -> int:
    """Longest chain of sequential steps in the layer's program: its loop iterations, or 1."""
    apply, params = layer_of(config)
    jaxpr = jax.make_jaxpr(apply)(params, jax.ShapeDtypeStruct((1, n, config.d_model), jnp.float32))
    return max(1, _chain(jaxpr.jaxpr))


def _chain(jaxpr) -> int:
    depth: dict[Any, int] = {}
    for eqn in jaxpr.eqns:
        before = max((depth.get(v, 0) for v in eqn.invars if not hasattr(v, "val")), default=0)
        inner = max((_chain(sub) for sub in _subprograms(eqn.params)), default=0)
        if eqn.primitive.name == "while":
            raise NotImplementedError("the number of iterations of a `while` loop is unknown before it runs")
        own = eqn.params["length"] * max(1, inner) if eqn.primitive.name == "scan" else inner
        depth |= dict.fromkeys(eqn.outvars, before + own)
    return max(depth.values(), default=0)


def _subprograms(params: dict[str, Any]):
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else [value]:
            if hasattr(item, "jaxpr"):
                yield item.jaxpr
            elif hasattr(item, "eqns"):
                yield item


def path_length(config: Model, n: int) -> int:
    """Measured path length: number of layers to connect the ends, times the sequential steps in each."""
    return layers_to_connect(config, n) * dependent_chain(config, n)


def shape(mixer: str = "attention", **keys) -> Model:
    """A model whose group `layer_types` has these keys."""
    return Model(d_model=8, num_heads=2, mixer=mixer, extensions=(("layer_types", LayerTypes(**keys)),))


@pytest.mark.parametrize(
    ("keys", "n", "path"),
    [
        (dict(), 64, 1),
        (dict(mixer="local_attention", window=17), 64, 8),
        (dict(mixer="local_attention", window=3), 40, 39),
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


@pytest.mark.parametrize("mixer", ["attention", "lstm", "gru", "conv", "dilated_conv"])
def test_only_recurrence_has_n_sequential_steps(mixer):
    recurrent = mixer in ("lstm", "gru")
    assert [dependent_chain(shape(mixer=mixer), n) for n in (8, 50)] == ([8, 50] if recurrent else [1, 1])
    if recurrent:
        assert layers_to_connect(shape(mixer=mixer), 12) == 1
