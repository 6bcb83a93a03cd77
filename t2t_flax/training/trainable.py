"""Which parameters a run trains: all but those of config.train.freeze or, with train.lora_rank, the adapters alone.

The optimizer, the gradient and its norm, weight decay and the moving average see the trained parameters alone, as a tree
without the branches of the others.
"""

import difflib
import fnmatch
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict

from t2t_flax.config import Config
from t2t_flax.config.fine_tuning import patterns_of
from t2t_flax.errors import UserError
from t2t_flax.models import flops

LORA = "lora"
"""The name of the low-rank adapters beside the parameters of the model, see `lora`."""


def split(config: Config, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(trained, frozen): the leaves of a tree of parameters, or of one shaped like it, in two trees of dicts.

    Raises UserError for a pattern that matches no parameter, and if nothing is left to train.
    """
    if config.train.lora_rank:
        return {LORA: params[LORA]}, {name: tree for name, tree in params.items() if name != LORA}
    if not config.train.freeze:
        return dict(params), {}
    leaves = flatten_dict(params, sep="/")
    frozen = matching(config.train.freeze, leaves, "config.train.freeze")
    if len(frozen) == len(leaves):
        raise UserError(
            f"config.train.freeze = {config.train.freeze!r} freezes all parameters: nothing is left to train."
        )
    trees = ({path: x for path, x in leaves.items() if (path in frozen) == wanted} for wanted in (False, True))
    trained, rest = (unflatten_dict(tree, sep="/") for tree in trees)
    return trained, rest


def backward_of(config: Config, vocab: int, params: Mapping[str, Any]) -> flops.Backward | None:
    """The products of the backward pass of an update of a run's parameters; None where all are trained. vocab: of the target.

    The gradient of a kernel with adapters is computed whole, those of the adapters follow from it. The products of
    adapters, which do not grow with the batch, are left out.
    """
    if not config.train.freeze and not config.train.lora_rank:
        return None
    paths = flatten_dict(split(config, params)[0], sep="/")
    if config.train.lora_rank:
        paths = {path.removeprefix(f"{LORA}/").rpartition("/")[0] for path in paths}
    return flops.partial_backward(config.model, vocab, params, paths)


def join(trained: Mapping[str, Any], frozen: Mapping[str, Any]) -> dict[str, Any]:
    """The tree that `split` divided."""
    if not frozen:
        return dict(trained)
    return unflatten_dict(flatten_dict(trained, sep="/") | flatten_dict(frozen, sep="/"), sep="/")


def matching(patterns: str, paths: Iterable[str], key: str) -> set[str]:
    """The paths, such as `encoder_0/self_attention/query/kernel`, that are named or lie in a folder that is named by a glob
    pattern: `encoder_*`, `*/self_attention`, `shared_embedding/table`.

    Raises UserError, naming `key` and the closest paths, for a pattern that matches none.
    """
    parts = {path: list(itertools.accumulate(path.split("/"), "{}/{}".format)) for path in paths}
    found: set[str] = set()
    for pattern in patterns_of(patterns):
        matched = {path for path, names in parts.items() if any(fnmatch.fnmatchcase(n, pattern) for n in names)}
        if not matched:
            names = dict.fromkeys(itertools.chain.from_iterable(parts.values()))
            near = ", ".join(difflib.get_close_matches(pattern, names, n=3, cutoff=0.0))
            raise UserError(f"{key}: no parameter matches {pattern!r}. The closest are {near}.")
        found |= matched
    return found
