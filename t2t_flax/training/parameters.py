"""The parameters of a run: which of them are trained, and how those of its model follow from them.

In the core they are those of the model, and all are trained. An extension replaces that for runs that set its keys.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from t2t_flax.config import Config
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.registry import PARAMETERS

if TYPE_CHECKING:
    from t2t_flax.training.setup import TrainingSetup


class Parameters:
    """The optimizer, the gradient and its norm, weight decay and the moving average see the trained parameters alone, as a tree
    without the branches of the others.
    """

    def extend(self, params: dict[str, Any]) -> dict[str, Any]:
        """The run's parameters from those of its model, as ShapeDtypeStructs with shardings."""
        return params

    def init(self, params: dict[str, Any], structs: dict[str, Any], key: jax.Array) -> dict[str, Any]:
        """The run's parameters from the model's initial ones. structs: of the run."""
        return params

    def start(
        self, setup: "TrainingSetup", params: dict[str, Any], group: ProcessGroup | None, say: Callable[[str], None]
    ) -> dict[str, Any]:
        """The parameters with which a new run begins, from its initial ones. Raises UserError."""
        return params

    def split(self, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """(trained, frozen): the leaves of a tree of the run's parameters, or of one shaped like it, in two trees of dicts."""
        return dict(params), {}

    def merge(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The model's parameters; for use within a traced function."""
        return params

    def merge_on_devices(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """As `merge`, of arrays; the result has their shardings."""
        return params

    def of_model(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The run's parameters that are the model's own, unmerged."""
        return dict(params)

    def merged_config(self, config: Config) -> Config:
        """The config of a run that holds the result of `merge`."""
        return config

    def with_gradient(self, params: Mapping[str, Any]) -> Collection[str] | None:
        """Paths of the model's parameters whose gradient is computed, "encoder_0/feed_forward/..."; None = all."""
        return None

    def describe(self) -> list[str]:
        """Lines for `explain`: where the parameters come from."""
        return []


def parameters_of(config: Config) -> Parameters:
    """The parameters of a run with this config."""
    for module in PARAMETERS.of(config):
        return module.parameters(config)
    return Parameters()


def join(trained: Mapping[str, Any], frozen: Mapping[str, Any]) -> dict[str, Any]:
    """The tree that `Parameters.split` divided."""
    if not frozen:
        return dict(trained)
    return unflatten_dict(flatten_dict(trained, sep="/") | flatten_dict(frozen, sep="/"), sep="/")


Axes = tuple[int | tuple[int, ...], int | tuple[int, ...]]
"""(axes that are summed over, axes that are produced) of a kernel as a matrix; the others number matrices."""

MATRIX_AXES: dict[str, Axes] = {
    "query": (0, (1, 2)),  # [d_model, heads, width]: one matrix of all heads
    "key": (0, (1, 2)),
    "value": (0, (1, 2)),
    "out": ((0, 1), 2),  # [heads, width, d_model]
}
"""Of kernels of more than two axes, by the name of their module."""


def matrix_axes_of(path: tuple[str, ...], shape: tuple[int, ...]) -> Axes | None:
    """The axes of the kernel at a path such as ("encoder_0", "self_attention", "query", "kernel"); None for a table, a norm
    and a bias. Raises ValueError for a kernel of three axes that has no row in the table.
    """
    *_, module, name = ("", *path)
    if name != "kernel":
        return None
    if len(shape) == 2:
        return 0, 1
    if module not in MATRIX_AXES:
        raise ValueError(f"which axes of {'/'.join(path)} {list(shape)} are inputs? Add it to MATRIX_AXES.")
    return MATRIX_AXES[module]
