"""Parameters of a run and of its model. A run of the core trains all parameters of the model."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from t2t_flax.config import Config
from t2t_flax.distributed.mesh import Params
from t2t_flax.errors import UserError
from t2t_flax.registry import PARAMETERS


class Scale(NamedTuple):
    """Factors of a parameter's initial value, of its gradient before the optimizer, and of its rate."""

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
class Parameters:
    """Functions between the parameters of a run and of its model.

    The optimizer, the gradient and its norm, weight decay and the moving average see the trained parameters alone.

    Attributes:
      split: divides a tree of the run's parameters, or one shaped like it, into (trained, frozen) trees of dicts.
      extend: adds the run's own parameters to the model's; ShapeDtypeStructs with shardings.
      initial: adds initial values: (the model's, structs of the run, key) -> the run's.
      merge: the model's parameters from the run's; for arrays, and within traced functions.
      merged_config: the config of a run that holds merged parameters.
      start: (setup, initial values, group, say) -> trained parameters that a new run starts from. They are evaluated before
        its first update. Raises UserError.
      scales: (params) -> factors of each of them; weight decay is not scaled. Raises UserError for a parameter without rule.
    """

    split: Callable[[Params], tuple[Params, Params]] = _all_trained
    extend: Callable[[Params], Params] = _unchanged
    initial: Callable[[Params, Params, jax.Array], Params] = lambda params, structs, key: params
    merge: Callable[[Params], Params] = _unchanged
    merged_config: Callable[[Config], Config] = _unchanged
    start: Callable[..., Params] | None = None
    scales: Callable[[Params], Scales] | None = None


def parameters_of(config: Config) -> Parameters:
    """Return the parameters of a run; ask once, and keep them.

    Raises UserError for keys that exclude each other.
    """
    modules = list(PARAMETERS.of(config))
    if len(modules) > 1:
        groups = [PARAMETERS[module.__name__][0].partition(".")[0] for module in modules]
        raise UserError(
            f"config.{' and config.'.join(groups)} both say how parameters begin and are trained: leave out one of them."
        )
    return modules[0].parameters(config) if modules else Parameters()


def explain_parameters(config: Config) -> list[list[str]]:
    """Return sections of `explain`."""
    return [lines for module in PARAMETERS.of(config) if (lines := module.explain(config))]


def join(trained: Params, frozen: Params) -> Params:
    """The tree that `Parameters.split` divided."""
    if not frozen:
        return trained
    return unflatten_dict(flatten_dict(trained, sep="/") | flatten_dict(frozen, sep="/"), sep="/")


def merged(parameters: Parameters, params: Params) -> Params:
    """The model's parameters as arrays, with the shardings that they have among the run's."""
    found = parameters.merge(params)
    if found is params:
        return params
    own = model_part(parameters, params)
    return jax.tree.map(lambda new, old: jax.device_put(new, old.sharding), found, own)


def model_part(parameters: Parameters, params: Params) -> Params:
    """The run's parameters that are the model's own, unmerged."""
    if parameters.merge is _unchanged:
        return params
    leaves = flatten_dict(params, sep="/")
    names = flatten_dict(jax.eval_shape(parameters.merge, params), sep="/")
    return unflatten_dict({name: leaves[name] for name in names}, sep="/")


def scaled(params: Params, scales: Scales, column: str) -> Params:
    """Parameters, or a tree shaped like them, times a column of `scales`."""

    def times(path, x):
        factor = getattr(scales[path_names(path)], column)
        return x if factor == 1.0 else x * factor

    return jax.tree_util.tree_map_with_path(times, params)


def path_names(path: tuple) -> Path:
    """The dict keys on the path of a leaf: `("encoder_0", "feed_forward", ...)`."""
    return tuple(key.key for key in path if isinstance(key, jax.tree_util.DictKey))
