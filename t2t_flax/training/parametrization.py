"""Map between the parameters of a run and the parameters of its model.

By default a run trains all parameters of the model, and both are the same. Extensions freeze
parameters, add adapters, or scale them.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from t2t_flax.config import Config
from t2t_flax.distributed.mesh import Params
from t2t_flax.errors import UserError


class Scale(NamedTuple):
    """Factors of one parameter.

    They scale its initial value, its gradient before the optimizer, and its learning rate.
    """

    initial: float = 1.0
    gradient: float = 1.0
    rate: float = 1.0


Path: TypeAlias = tuple[str, ...]
Scales: TypeAlias = Mapping[Path, Scale]


def _all_trained(params: Params) -> tuple[Params, Params]:
    return params, {}


def _unchanged(x):
    return x


@dataclasses.dataclass(frozen=True)
class Parametrization:
    """Functions that map between the parameters of a run and of its model.

    Only the trained parameters take part in the optimizer, the gradient and its norm, weight decay
    and the moving average.

    Attributes:
        split: divides a tree of the run's parameters, or one of the same shape, into (trained,
            frozen) trees of dicts.
        extend: adds the run's own parameters to the model's. Both are ShapeDtypeStructs with
            shardings.
        initial: (the model's values, structs of the run, key) -> initial values of the run.
        merge: computes the model's parameters from the run's, for arrays and in traced functions.
        merged_config: returns the config of a run that holds merged parameters.
        start: (setup, initial values, group, say) -> trained parameters that a new run starts from.
            The run evaluates them before its first update. Raises UserError.
        scales: (params) -> factors of each parameter. They do not scale weight decay. Raises
            UserError for a parameter without a rule.
        explain: returns lines for the command `explain`.
    """

    split: Callable[[Params], tuple[Params, Params]] = _all_trained
    extend: Callable[[Params], Params] = _unchanged
    initial: Callable[[Params, Params, jax.Array], Params] = lambda params, structs, key: params
    merge: Callable[[Params], Params] = _unchanged
    merged_config: Callable[[Config], Config] = _unchanged
    start: Callable[..., Params] | None = None
    scales: Callable[[Params], Scales] | None = None
    explain: Callable[[], list[str]] = list


def parametrization_of(config: Config) -> Parametrization:
    """Return the `Parametrization` of a config.

    Call it once for a run and keep the result. Raises UserError for keys that exclude each other.
    """
    made = {name: group.parametrization(config) for name, group in config.extension_groups.items()}
    found = {name: made_by for name, made_by in made.items() if made_by}
    if len(found) > 1:
        raise UserError(
            f"config.{' and config.'.join(found)} both say how parameters begin and are trained:"
            " leave out one of them."
        )
    return next(iter(found.values()), Parametrization())


def join(trained: Params, frozen: Params) -> Params:
    """Join the two trees that `Parametrization.split` returned."""
    if not frozen:
        return trained
    return unflatten_dict(flatten_dict(trained, sep="/") | flatten_dict(frozen, sep="/"), sep="/")


def merged(parametrization: Parametrization, params: Params) -> Params:
    """Compute the model's parameters as arrays, with their shardings in the run."""
    new = parametrization.merge(params)
    if new is params:
        return params
    old = model_part(parametrization, params)
    return jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), new, old)


def model_part(parametrization: Parametrization, params: Params) -> Params:
    """Select the run's parameters that the model has too, without merging."""
    if parametrization.merge is _unchanged:
        return params
    leaves = flatten_dict(params, sep="/")
    names = flatten_dict(jax.eval_shape(parametrization.merge, params), sep="/")
    return unflatten_dict({name: leaves[name] for name in names}, sep="/")


def scaled(params: Params, scales: Scales, column: str) -> Params:
    """Multiply parameters, or a tree of the same shape, by a column of `scales`.

    Args:
        column: field of `Scale`.
    """

    def times(path, x):
        factor = getattr(scales[path_names(path)], column)
        return x if factor == 1.0 else x * factor

    return jax.tree_util.tree_map_with_path(times, params)


def path_names(path: tuple) -> Path:
    """Return the dict keys on the path of a leaf: ("encoder_0", "feed_forward", ...)."""
    return tuple(key.key for key in path if isinstance(key, jax.tree_util.DictKey))
