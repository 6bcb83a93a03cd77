"""Parses data.mixture, data.tags and data.limits, which refer to the sources of data.train by name."""

import math
import re
from typing import NamedTuple

from t2t_flax.config.data_keys import Data
from t2t_flax.config.named_sources import named_entries, parse_train_sources
from t2t_flax.errors import UserError

_RESERVED = ("<unk>", "<pad>", "<s>", "</s>")
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
_START = re.compile(r"\s*(\d+)\s*:(.*)", re.DOTALL)


class Phase(NamedTuple):
    """start: the first update (from 0) with these weights. weights: by name of the source; sources without one are left out.
    None = by size.
    """

    start: int
    weights: dict[str, float] | None


def parse_mixture(data: Data) -> list[Phase]:
    """The phases of data.mixture, the first from update 0. Raises UserError for unknown names, weights that are not positive
    numbers, and updates that are not ascending.
    """
    if not data.mixture.strip():
        return [Phase(0, None)]
    key, phases = f"config.data.mixture = {data.mixture!r}", []
    for number, part in enumerate(part for part in data.mixture.split(";") if part.strip()):
        start = _START.fullmatch(part)
        if bool(start) != (number > 0):
            raise UserError(f"{key}: write shares from update 0, then those of later updates as '; UPDATE: NAME=1'.")
        first, entries = (int(start[1]), start[2]) if start else (0, part)
        if phases and first <= phases[-1].start:
            raise UserError(f"{key}: update {first} must come after update {phases[-1].start}.")
        weights = {name: _weight(key, text) for name, text in named_entries(key, entries, _names(data)).items()}
        phases.append(Phase(first, weights))
    return phases


def parse_tags(data: Data) -> dict[str, str]:
    """data.tags by name of the source. Raises UserError for unknown names and tags with spaces."""
    key = f"config.data.tags = {data.tags!r}"
    tags = named_entries(key, data.tags, _names(data)) if data.tags.strip() else {}
    for tag in tags.values():
        if len(tag.split()) != 1:
            raise UserError(f"{key}: {tag!r} is not one word.")
        if tag in _RESERVED or _BYTE.fullmatch(tag):
            raise UserError(f"{key}: {tag} is a piece with a meaning of its own; choose another tag, such as <bt>.")
    return tags


def parse_limits(data: Data) -> dict[str, int]:
    """data.limits by name of the source. Raises UserError for unknown names and limits that are not whole numbers above 0."""
    key = f"config.data.limits = {data.limits!r}"
    limits = named_entries(key, data.limits, _names(data)) if data.limits.strip() else {}
    for name, text in limits.items():
        if not text.isdecimal() or not int(text):
            raise UserError(f"{key}: {text!r} is not a number of pairs (of {name}).")
    return {name: int(text) for name, text in limits.items()}


def check_mixture(data: Data) -> None:
    """Raises UserError for a wrong value of the keys that refer to the sources of data.train."""
    phases, _, _ = parse_mixture(data), parse_tags(data), parse_limits(data)
    if data.mixture_temperature != 1 and phases[0].weights:
        raise UserError(
            f"config.data.mixture gives the shares: config.data.mixture_temperature = {data.mixture_temperature} would have "
            "no effect. Set one of them."
        )


def _names(data: Data) -> list[str]:
    return list(parse_train_sources(data.train))


def _weight(key: str, text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not (0 < weight < math.inf):
        raise UserError(f"{key}: {text!r} is not a share: write a number above 0, and leave out sources without pairs.")
    return weight
