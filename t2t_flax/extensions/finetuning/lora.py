"""Low-rank adapters: W + alpha / rank * A B in place of a kernel W.

LoRA, Hu et al. 2021. A and B are trained and W is frozen. A run's parameters hold them beside the
model's: `lora/PATH OF W/a` and `.../b`. The model sees merged parameters alone, and reading a
checkpoint merges them, so decoding, evaluation and export know nothing of adapters.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import NamedSharding, PartitionSpec

from t2t_flax.extensions.finetuning import FineTuning
from t2t_flax.extensions.finetuning.frozen import matching
from t2t_flax.extensions.shared.matrices import matrix_axes_of
from t2t_flax.training.parametrization import Params

NAME = "lora"
"""Folder of the adapters beside the model's parameters."""


def with_adapters(keys: FineTuning, params: Params) -> Params:
    """Add the adapters that the config wants to a model's abstract parameters.

    `params` are ShapeDtypeStructs with shardings. Adapters are float32, A [inputs, rank] and B
    [rank, outputs], with axes sharded like the matching axes of W. Raises UserError for a pattern
    of finetuning.lora_modules that matches no kernel.
    """
    if not keys.lora_rank:
        return params
    leaves = flatten_dict(params, sep="/")
    kernels = [
        path for path, leaf in leaves.items() if matrix_axes_of(tuple(path.split("/")), leaf.shape)
    ]
    adapters = {}
    for path in sorted(matching(keys.lora_modules, kernels, "config.finetuning.lora_modules")):
        leaf, (*letters, whole) = leaves[path], _equation(path, leaves[path].shape)
        sizes = dict(zip(whole, leaf.shape, strict=True)) | {"r": keys.lora_rank}
        axes = dict(zip(whole, leaf.sharding.spec, strict=False))
        for name, own in zip("ab", letters, strict=True):
            sharding = NamedSharding(leaf.sharding.mesh, PartitionSpec(*map(axes.get, own)))
            shape = tuple(map(sizes.__getitem__, own))
            adapters[f"{path}/{name}"] = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
    return {**params, NAME: unflatten_dict(adapters, sep="/")}


def init_adapters(adapters: Any, key: jax.Array) -> Any:
    """Return initial arrays for the adapters of `with_adapters`.

    A is normal with variance 1 / inputs, B zero, so that A B is zero.
    """
    leaves = flatten_dict(adapters, sep="/")

    def init(path, leaf, key):
        if path.endswith("/b"):
            return jnp.zeros(leaf.shape, leaf.dtype)
        return math.prod(leaf.shape[:-1]) ** -0.5 * jax.random.normal(key, leaf.shape, leaf.dtype)

    keys = jax.random.split(key, len(leaves))
    return unflatten_dict(
        {path: init(path, leaves[path], keys[i]) for i, path in enumerate(sorted(leaves))}, sep="/"
    )


def split(params: Params) -> tuple[Params, Params]:
    """Return (adapters, the model's parameters); the adapters are trained."""
    return {NAME: params[NAME]}, {name: tree for name, tree in params.items() if name != NAME}


def merge(keys: FineTuning, params: Params) -> Params:
    """Return the model's parameters with the adapters added."""
    if NAME not in params:
        return params
    adapters, model = split(params)
    leaves, pairs = flatten_dict(model, sep="/"), flatten_dict(adapters[NAME], sep="/")
    for path in sorted({path.rpartition("/")[0] for path in pairs}):  # same order on all processes
        a, b, whole = _equation(path, leaves[path].shape)
        scale = keys.lora_alpha / keys.lora_rank
        leaves[path] = _added(
            f"{a},{b}->{whole}", scale, leaves[path], pairs[f"{path}/a"], pairs[f"{path}/b"]
        )
    return unflatten_dict(leaves, sep="/")


@functools.partial(jax.jit, static_argnums=(0, 1))
def _added(equation: str, scale: float, w: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    return w + scale * jnp.einsum(equation, a, b, precision="highest")


def _equation(path: str, shape: tuple[int, ...]) -> tuple[str, str, str]:
    """Return the axes of A, B and a kernel as letters.

    ("ar", "rbc", "abc") for queries [d_model, heads, width].
    """
    inputs, outputs = (
        (x,) if isinstance(x, int) else x
        for x in matrix_axes_of(tuple(path.split("/")), shape) or ()
    )
    whole = "abcd"[: len(shape)]
    first = "".join(letter for i, letter in enumerate(whole) if i not in (*inputs, *outputs))
    named = lambda axes: "".join(whole[i] for i in axes)  # noqa: E731
    return f"{first}{named(inputs)}r", f"{first}r{named(outputs)}", whole
