"""Frozen parameters, and patterns that name parameters."""

import difflib
import fnmatch
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict

from t2t_flax.errors import UserError
from t2t_flax.extensions.finetuning import patterns_of


def split_frozen(patterns: str, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (trained, frozen) parameters, see `training.parametrization.Parametrization`.

    Raises UserError for a pattern that matches no parameter, and if nothing is left to train.
    """
    if not patterns:
        return dict(params), {}
    leaves = flatten_dict(params, sep="/")
    frozen = matching(patterns, leaves, "config.finetuning.freeze")
    if len(frozen) == len(leaves):
        raise UserError(
            f"config.finetuning.freeze = {patterns!r} freezes all parameters: nothing is left to"
            " train."
        )
    trees = (
        {path: x for path, x in leaves.items() if (path in frozen) == wanted}
        for wanted in (False, True)
    )
    trained, rest = (unflatten_dict(tree, sep="/") for tree in trees)
    return trained, rest


def matching(patterns: str, paths: Iterable[str], key: str) -> set[str]:
    """Return the paths that glob patterns match, directly or through a folder.

    A path is such as `encoder_0/self_attention/query/kernel`; patterns are such as `encoder_*`,
    `*/self_attention` and `shared_embedding/table`. Raises UserError, naming `key` and the closest
    paths, for a pattern that matches none.
    """
    parts = {path: list(itertools.accumulate(path.split("/"), "{}/{}".format)) for path in paths}
    found: set[str] = set()
    for pattern in patterns_of(patterns):
        matched = {
            path
            for path, names in parts.items()
            if any(fnmatch.fnmatchcase(n, pattern) for n in names)
        }
        if not matched:
            names = dict.fromkeys(itertools.chain.from_iterable(parts.values()))
            near = ", ".join(difflib.get_close_matches(pattern, names, n=3, cutoff=0.0))
            raise UserError(f"{key}: no parameter matches {pattern!r}. The closest are {near}.")
        found |= matched
    return found
