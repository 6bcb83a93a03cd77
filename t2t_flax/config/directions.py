"""Parses data.directions: from which language into which each source of text is translated.

The model is given the target language as a token before the source sentence (Johnson et al. 2017, section 3), which is a
control symbol of the tokenizer: no text encodes to it.
"""

import dataclasses
import functools
import itertools
import re
import types
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from t2t_flax.config.data_keys import Data
from t2t_flax.config.named_sources import (
    VALID_PREFIX,
    named_entries,
    parse_test_sets,
    parse_train_sources,
    parse_valid_sets,
)
from t2t_flax.errors import UserError

BY_NAME = "by_name"
SEVERAL = "mul"
"""ISO 639-2's code of multiple languages."""
_LANGUAGE = "[A-Za-z]{2,8}(?:_[A-Za-z0-9]{2,8})*"
_LANGUAGE_TOKEN = re.compile(rf"<2({_LANGUAGE})>|>>([^<>\s]+)<<")
_DIRECTION = re.compile(f"({_LANGUAGE})-({_LANGUAGE})")


class Direction(NamedTuple):
    """Codes of the source and the target language."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


def language_token(language: str) -> str:
    """The token that asks for a translation into this language: `<2de>`."""
    return f"<2{language}>"


def language_of_token(token: str) -> str | None:
    """The language that a token asks for, as `language_token` writes it or as Marian's models do, `>>de<<`; None for another."""
    match = _LANGUAGE_TOKEN.fullmatch(token)
    return match and (match[1] or match[2])


@functools.lru_cache(128)  # asked for each request and each batch, where there may be hundreds of directions
def parse_directions(data: Data) -> Mapping[str, Direction]:
    """The direction of every source of data.train, data.valid and data.test, by its name (`train`, `valid` and `test` without
    one); empty without data.directions. Raises UserError for a name that no source has, a source without a direction, and
    held-out text in a language into which no training text is translated.
    """
    if not data.directions.strip():
        return types.MappingProxyType({})
    key, names = f"config.data.directions = {data.directions!r}", _names(data)
    for name, split in names.items():
        if name.startswith(VALID_PREFIX):
            raise UserError(
                f"{key}: the name {name!r} in config.data.{split} begins with {VALID_PREFIX!r}, which stands before the names of "
                "validation sets. Use another name."
            )
    parts = data.directions.split(",")
    given = ",".join(part for part in parts if part.strip() != BY_NAME)
    entries = named_entries(key, given, list(names), "data.train, data.valid and data.test have")
    by_name, directions = any(part.strip() == BY_NAME for part in parts), {}
    for name, split in names.items():
        text = entries.get(name, name.partition(".")[0] if by_name else None)
        match = _DIRECTION.fullmatch(text) if text else None
        if name in entries and not match:
            raise UserError(
                f"{key}: {text!r} is not a direction. Write two language codes as en-de; a region or script follows an "
                "underscore, as in en-zh_Hans."
            )
        if not match:
            why = "is not named after its direction" if by_name else "has no direction"
            raise UserError(
                f"{key}: the source {name!r} of config.data.{split} {why}: add {name}=en-de or another one."
            )
        directions[name] = Direction(*match.groups())
    _check_codes(key, directions.values())
    targets = sorted({directions[name].target for name in parse_train_sources(data.train)})
    for name, direction in directions.items():
        if targets and direction.target not in targets:
            raise UserError(
                f"{key}: {name} is translated into {direction.target}, but no source of config.data.train is: the model would "
                f"not know its token. It knows {', '.join(targets)}."
            )
    return types.MappingProxyType(directions)


def _check_codes(key: str, directions: Iterable[Direction]) -> None:
    """Raises UserError for a language with two codes that differ in case alone."""
    spellings: dict[str, str] = {}
    for code in itertools.chain.from_iterable(directions):
        if (other := spellings.setdefault(code.lower(), code)) != code:
            raise UserError(f"{key}: {other} and {code} would be two languages; write the code in one way.")


def _names(data: Data) -> dict[str, str]:
    """By name of a source, the first split that has it."""
    splits = {
        "train": parse_train_sources(data.train),
        "valid": [name.removeprefix(VALID_PREFIX) for name in parse_valid_sets(data.valid)],
        "test": parse_test_sets(data.test),
    }
    names: dict[str, str] = {}
    for split, of_split in splits.items():
        names |= {name: split for name in of_split if name not in names}
    return names


def direction_of_set(data: Data, name: str) -> Direction | None:
    """The direction of a training source, a validation set or a test set, by the name that `parse_...` gives it."""
    return parse_directions(data).get(name.removeprefix(VALID_PREFIX))


def in_direction_of(data: Data, name: str) -> Data:
    """`data` with the languages of that set's direction as data.source_language and data.target_language."""
    direction = direction_of_set(data, name)
    if direction is None:
        return data
    return dataclasses.replace(data, source_language=direction.source, target_language=direction.target)


def directions_of_training(data: Data) -> list[Direction]:
    """The direction of each source of data.train; empty without data.directions."""
    directions = parse_directions(data)
    return [directions[name] for name in parse_train_sources(data.train) if directions]


def trained_directions(data: Data) -> list[Direction]:
    """The directions with training text, in the order of data.train."""
    return list(dict.fromkeys(directions_of_training(data)))


def untrained_directions(data: Data) -> list[Direction]:
    """The directions of validation and test sets for which there is no training text (zero-shot)."""
    trained = trained_directions(data)
    return list(dict.fromkeys(d for d in parse_directions(data).values() if d not in trained))


def target_languages(data: Data) -> list[str]:
    """The languages into which the model translates, sorted; empty without data.directions."""
    return sorted({direction.target for direction in trained_directions(data)})
