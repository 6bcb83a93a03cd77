"""Sums over the slices of a batch, in the order of a binary tree whose leaves are the slices.

What must be the same on every mesh is the program that computes a slice, not only the order of the sums: XLA fuses a product
into a sum where it can, and then rounds once instead of twice. Hence the loop over the slices, whose length the compiler does
not know: it cannot unroll it on the mesh where a device has one slice. Hence the barriers too, and what `compile` does.
"""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.extend.core import Literal
from jax.sharding import PartitionSpec
from jaxlib.mlir.passmanager import PassManager

from t2t_flax.config import Config
from t2t_flax.distributed.mesh import MICRO_ROWS, REPLICATED, ROWS, batch_shards
from t2t_flax.errors import UserError
from t2t_flax.training.losses import Sums
from t2t_flax.training.row_sums import OfRows, RowSums, accumulate

_WHOLE = -1


def row_sums(config: Config, mesh: jax.sharding.Mesh) -> RowSums:
    """Raises UserError where the slices cannot be divided over the devices."""
    slices, devices = config.group("reproducible").slices, batch_shards(mesh)
    if slices % devices:
        raise UserError(
            f"config.reproducible.slices = {slices} is not a multiple of the {devices} devices that divide the batch (mesh.data "
            "x mesh.fsdp). It is fixed when a run starts: the largest number of devices that the run will ever use."
        )
    return TreeSums(slices, mesh)


_OPTIONS: dict[str, dict[str, str | bool]] = {
    "cpu": {"xla_disable_hlo_passes": "cse_barrier_expander", "xla_cpu_multi_thread_eigen": False},
    "gpu": {"xla_gpu_deterministic_ops": True},
}
"""On CPU: barriers stay, and products are computed by one thread, since Eigen's blocks depend on how many there are. On GPU: no
atomic sums, and no kernels that are chosen by their time.
"""


class TreeSums(RowSums):
    """Of `slices` slices: each device computes its slices one by one and adds them up as a subtree; the devices' sums are the
    next levels. Parameters are gathered whole for it; the sums are float32, and a device keeps its part of those.
    """

    def __init__(self, slices: int, mesh: jax.sharding.Mesh):
        super().__init__(slices)
        self._mesh, self._own = mesh, slices // batch_shards(mesh)

    def of_update(
        self, micro: OfRows, trained: Any, parts: Any, zeros: Sums, dtype: jnp.dtype, moments: Any
    ) -> tuple[Any, Sums]:
        of_no_rows = trained, zeros
        axes = jax.tree.map(self._divided_axis, moments), jax.tree.map(lambda _: _WHOLE, zeros)

        def of_slice(trained, rows):
            return accumulate(micro, trained, rows, lambda: _zeros(of_no_rows))

        def of_device(trained, parts):
            slices = jax.tree.map(lambda x: jnp.moveaxis(self._sliced(x, 1), 1, 0), parts)
            total = _tree_sum(of_slice, trained, slices, slices[0]["target"], of_no_rows)
            return self._exchange(total, axes)

        specs = jax.tree.map(lambda axis: PartitionSpec(*[None] * axis, "fsdp") if axis >= 0 else REPLICATED, axes)
        return self._on_devices(of_device, (REPLICATED, MICRO_ROWS), specs)(trained, parts)

    def of_batch(self, function: OfRows, params: Any, rows: Any, zeros: Sums) -> Sums:
        def of_device(params, rows):
            slices = jax.tree.map(lambda x: self._sliced(x, 0), rows)
            total = _tree_sum(function, params, slices, slices["target"], zeros)
            return self._exchange(total, jax.tree.map(lambda _: _WHOLE, zeros))

        return self._on_devices(of_device, (REPLICATED, ROWS), REPLICATED)(params, rows)

    def norm(self, grads: Any) -> jax.Array:
        """Of the gathered gradients: each device sums all squares in one order, that of vectors, which have but one layout."""
        vectors = lambda grads: jax.lax.optimization_barrier([x.ravel() for x in jax.tree.leaves(grads)])  # noqa: E731
        return self._on_devices(lambda grads: optax.tree.norm(vectors(grads)), (REPLICATED,), REPLICATED)(grads)

    def apply(self, update: Callable[..., Any], *arrays: Any) -> Any:
        """Every product and quotient is rounded: whether XLA fuses it into a sum also follows from the shapes of shards."""
        jaxpr, result = jax.make_jaxpr(update, return_shape=True)(*arrays)
        values = _rounded(jaxpr.jaxpr, jaxpr.consts, jax.tree.leaves(arrays))
        return jax.tree.unflatten(jax.tree.structure(result), values)

    def compile(self, lowered: jax.stages.Lowered, options: Mapping[str, Any] | None = None) -> jax.stages.Compiled:
        """XLA merges repeated expressions before all else where there are several devices, later where there is one; and how a
        quotient is simplified follows from that. Here they are merged before it on any mesh.
        """
        module: Any = lowered.compiler_ir()
        with module.context:
            PassManager.parse("builtin.module(cse)").run(module.operation)
        platform = self._mesh.devices.flat[0].platform
        return lowered.compile({**(options or {}), **_OPTIONS.get(platform, {})})

    def _on_devices(self, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """`function` as the program of each device, on its own rows; parameters of the spec REPLICATED are gathered."""

        def of_device(*arrays):
            with nn.logical_axis_rules(()):  # a device has nothing to divide
                return function(*arrays)

        mapped = jax.shard_map(of_device, mesh=self._mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        return lambda *arrays: jax.lax.optimization_barrier(mapped(*arrays))

    def _sliced(self, x: jax.Array, axis: int) -> jax.Array:
        """The rows on `axis` as two axes: the device's slices, and the rows of each."""
        return x.reshape(*x.shape[:axis], self._own, -1, *x.shape[axis + 1 :])

    def _divided_axis(self, sharding: jax.sharding.NamedSharding) -> int:
        """The axis of an array that is divided over the mesh axis fsdp, or _WHOLE."""
        divided = [i for i, axes in enumerate(sharding.spec) if axes and "fsdp" in np.atleast_1d(axes)]
        return divided[0] if divided and self._mesh.shape["fsdp"] > 1 else _WHOLE

    def _exchange(self, tree: Any, axes: Any) -> Any:
        """The sums over the devices; of an array with an axis, the part of the device on it. One array travels: in equal parts
        to those that sum them, first between the devices of the lower levels.
        """
        data, fsdp = self._mesh.shape["data"], self._mesh.shape["fsdp"]
        if data * fsdp == 1:
            return tree
        arrays, structure = jax.tree.flatten(tree)
        rows = [_in_parts(x, axis, fsdp) for x, axis in zip(arrays, jax.tree.leaves(axes), strict=True)]
        own_M = _sum_of_part(jnp.concatenate(rows, axis=1), "fsdp")
        size = own_M.size
        own_M = _gather(_sum_of_part(_in_parts(own_M, _WHOLE, data), "data"), "data", data).ravel()[:size]
        parts = jnp.split(own_M, np.cumsum([x.shape[1] for x in rows])[:-1])
        whole = [i for i, axis in enumerate(jax.tree.leaves(axes)) if axis == _WHOLE]
        gathered = _gather(jnp.concatenate([parts[i] for i in whole]), "fsdp", fsdp)
        ends = np.cumsum([parts[i].size for i in whole])[:-1]
        for i, x in zip(whole, jnp.split(gathered, ends, axis=1), strict=True):
            parts[i] = x.ravel()[: arrays[i].size]
        shapes = [
            x.shape if axis == _WHOLE else (*x.shape[:axis], x.shape[axis] // fsdp, *x.shape[axis + 1 :])
            for x, axis in zip(arrays, jax.tree.leaves(axes), strict=True)
        ]
        return structure.unflatten([part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)])


def _tree_sum(function: OfRows, params: Any, slices: Any, ids: jax.Array, like: Any) -> Any:
    """The sum of `function(params, slice)` over 2^m slices [2^m, ...]: that of both halves, each of which is summed so. ids: an
    array of the slices without negative numbers. like: arrays like the sum. Sums that wait for their other half are kept, one
    for each level of the tree.
    """
    params = jax.lax.optimization_barrier(params)
    count = len(ids) + jnp.minimum(ids.ravel()[0], 0)  # len(ids), which the compiler does not know
    waiting = _zeros(like, len(ids).bit_length())

    def add_slice(state):
        number, waiting = state
        rows = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, number, keepdims=False), slices)

        def add_first_half(state):
            level, total = state
            return level + 1, jax.tree.map(lambda kept, x: kept[level] + x, waiting, total)

        # The slice ends as many subtrees as its number ends in ones, in binary.
        ends_more = lambda state: (number >> state[0]) & 1 == 1  # noqa: E731
        level, total = jax.lax.while_loop(ends_more, add_first_half, (0, function(params, rows)))
        put = lambda kept, x: jax.lax.dynamic_update_index_in_dim(kept, x, level, 0)  # noqa: E731
        return number + 1, jax.tree.map(put, waiting, total)

    _, waiting = jax.lax.while_loop(lambda state: state[0] < count, add_slice, (0, waiting))
    return jax.tree.map(lambda x: x[-1], waiting)


_PRODUCTS = ("mul", "div", "square", "integer_pow", "broadcast_in_dim")
"""Operations whose results are rounded. Copies of a number too: how often one is used decides how XLA divides by it."""


def _rounded(jaxpr: Any, constants: list[Any], arrays: list[Any]) -> list[Any]:
    """The results of a jaxpr, whose products no other operation is fused with."""
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arrays), strict=True))
    read = lambda x: x.val if isinstance(x, Literal) else values[x]  # noqa: E731
    for step in jaxpr.eqns:
        inputs = [read(x) for x in step.invars]
        if step.primitive.name == "jit":
            inner = step.params["jaxpr"]
            results = _rounded(inner.jaxpr, inner.consts, inputs)
        else:
            results = step.primitive.bind(*inputs, **step.primitive.get_bind_params(step.params))
            results = results if step.primitive.multiple_results else [results]
            if step.primitive.name in _PRODUCTS:
                results = jax.lax.optimization_barrier(results)
        values |= zip(step.outvars, results, strict=True)
    return [read(x) for x in jaxpr.outvars]


def _zeros(like: Any, *axes: int) -> Any:
    return jax.tree.map(lambda x: jnp.zeros((*axes, *x.shape), x.dtype), like)


def _in_parts(x: jax.Array, axis: int, parts: int) -> jax.Array:
    """[parts, N]: the parts of x along an axis, or of all its numbers, to which zeros may be added."""
    if axis == _WHOLE:
        return jnp.pad(x.ravel(), (0, -x.size % parts)).reshape(parts, -1)
    split = x.reshape(*x.shape[:axis], parts, -1, *x.shape[axis + 1 :])
    return jnp.moveaxis(split, axis, 0).reshape(parts, -1)


def _sum_of_part(x_PxN: jax.Array, mesh_axis: str) -> jax.Array:
    """[N]: of the P devices on a mesh axis, device p receives part p of all and sums them in pairs, pairs of pairs ..."""
    if len(x_PxN) > 1:
        x_PxN = jax.lax.all_to_all(x_PxN, mesh_axis, 0, 0)
    while len(x_PxN) > 1:
        x_PxN = x_PxN[::2] + x_PxN[1::2]
    return x_PxN[0]


def _gather(x_N: jax.Array, mesh_axis: str, devices: int) -> jax.Array:
    """[devices, N]: the arrays of all devices on a mesh axis."""
    return jax.lax.all_gather(x_N, mesh_axis) if devices > 1 else x_N[None]
