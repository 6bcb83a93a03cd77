"""Config keys: dataclass fields with meaning, unit, range and conditions."""

import dataclasses
import functools
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from t2t_flax.errors import UserError

Value: TypeAlias = Any
"""Value of a key: a bool, number, text or tuple."""
Values: TypeAlias = dict[str, Value]
"""Values by the names of keys, or by group."""
_LARGEST = {int: 2**31 - 1, float: 1e30}
"""Largest int32 and float32 values: the bounds of a key without bounds."""


MODEL, TRANSLATIONS, PRINTED, SCORES, TRAINING, NOTHING = (
    "model",
    "translations",
    "printed",
    "scores",
    "training",
    "",
)

NUMBER, TEXT, READ, WRITTEN, PROGRAM, CODE = (
    "number", "text", "path that is read", "path that is written", "program", "code",
)  # fmt: skip
"""Kinds of values.

PROGRAM names a program to run, CODE a module or a pickle to load.
"""
RUN = (PROGRAM, CODE)
OF_USER = (WRITTEN, *RUN)
"""Kinds that a stored config cannot set, because it can come from somebody else.

See `overrides.from_elsewhere`.
"""


@dataclasses.dataclass(frozen=True)
class When:
    """Condition on the values of other keys.

    Args:
        tests: keys with a test of their value; one test must hold.
        text: the condition in messages, such as `config.decode.strategy = sample`.
    """

    tests: tuple[tuple[str, Callable[[Value], bool]], ...]
    text: str

    def __or__(self, other: "When") -> "When":
        return When(self.tests + other.tests, f"{self.text} or {other.text}")

    def holds(self, value_of: Callable[[str], Value]) -> bool:
        """Return whether the condition holds, where `value_of(key)` is the value of a key."""
        return any(test(value_of(name)) for name, test in self.tests)


def one_of(name: str, *values: Value) -> When:
    """Require one of these values of a key."""
    return When(((name, values.__contains__),), f"config.{name} = {' or '.join(map(str, values))}")


def none_of(name: str, *values: Value) -> When:
    """Require a value of a key other than these."""
    return When(
        ((name, lambda value: value not in values),),
        f"config.{name} other than {' or '.join(map(str, values))}",
    )


def is_set(name: str) -> When:
    """Require a value of a key other than 0 or empty."""
    return When(((name, bool),), f"config.{name} set")


def lists(name: str, word: str) -> When:
    """Require a word in the value of a key, a comma-separated list."""
    return When(((name, lambda value: word in str(value)),), f"{word} in config.{name}")


def key(
    default: Value, doc: str, *, unit: str = "", choices=(), low=None, high=None,
    mutable: bool = False, changes: str | None = None, when: When | Sequence[When] = (),
    kind: str = "",
) -> Value:  # fmt: skip
    """Return a dataclass field with its meaning, unit and range.

    Args:
        low: smallest value, inclusive.
        high: largest value, inclusive.
        mutable: whether the key may change when a run is resumed.
        changes: part of a trained run that another value affects. MODEL = the function that it
            computes, TRANSLATIONS = its outputs, PRINTED = text that flags print beside these,
            SCORES = their scores, TRAINING = future updates, NOTHING = speed, memory, scheduling
            and display. Default: TRAINING, or NOTHING if mutable.
        when: conditions without which the key is not read; values other than the default are then
            refused.
        kind: NUMBER, TEXT ...; required for a text without choices. For a READ path the content of
            the file counts, not its name.

    Raises ValueError for a mutable key that changes the model, and for a text without a kind.
    """
    changes = (NOTHING if mutable else TRAINING) if changes is None else changes
    if mutable and changes == MODEL:
        raise ValueError(
            f"a run cannot go on as another model, so this key cannot be mutable: {doc}"
        )
    if not kind and isinstance(default, str) and not choices:
        raise ValueError(f"this key needs a kind: {doc}")
    metadata = dict(
        doc=doc,
        unit=unit,
        choices=choices,
        low=low,
        high=high,
        mutable=mutable,
        changes=changes,
        when=(when,) if isinstance(when, When) else tuple(when),
        kind=kind or (TEXT if choices else NUMBER),
    )
    return dataclasses.field(default=default, metadata=metadata)


mutable_key = functools.partial(key, mutable=True)
"""Key that may change when a run is resumed."""


def keys_of(group: Value) -> list[dataclasses.Field]:
    """Return the keys of a group, which are its fields made by `key`.

    The group is a dataclass or an object of it.
    """
    return [item for item in dataclasses.fields(group) if item.metadata]


def type_name(item: dataclasses.Field) -> str:
    """Return a key's type in words: `int`, `float or none`, `one of post, pre`."""
    if item.metadata["choices"]:
        return "one of " + ", ".join(item.metadata["choices"])
    if typing.get_origin(item.type) is tuple:
        return "(" + ", ".join(t.__name__ for t in _types(item)) + ")"
    names: dict[Value, str] = {bool: "true or false", str: "text"}
    return names.get(item.type) or str(getattr(item.type, "__name__", "float or none"))


def _types(item: dataclasses.Field) -> tuple[type, ...]:
    return typing.get_args(item.type) or (item.type,)


def parse_value(name: str, item: dataclasses.Field, text: str) -> Value:
    """Return the value for `--config.NAME=TEXT`.

    Raises UserError for text that does not fit the key's type.
    """
    types = _types(item)
    try:
        if typing.get_origin(item.type) is tuple:
            parts = text.strip("()").split(",")
            return tuple(cast(part) for cast, part in zip(types, parts, strict=True))
        if type(None) in types and text.lower() == "none":
            return None
        if item.type is bool:
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        return types[0](text.replace("_", "") if item.type is int else text)
    except (ValueError, KeyError):
        shown = show(text, quote=False)
        raise UserError(f"--config.{name}={shown}: expected {type_name(item)}.") from None


def check_value(name: str, item: dataclasses.Field, value: Value) -> Value:
    """Return the value in the key's type.

    Raises UserError, naming the key, for another type or a value out of range.
    """
    types, meta, shown = _types(item), item.metadata, f"config.{name} = {show(value)}"
    if typing.get_origin(item.type) is tuple:
        ok = isinstance(value, tuple | list) and [type(v) for v in value] == list(types)
        value = tuple(value) if ok else value
    elif float in types and type(value) is int and abs(value) <= 2**53:
        ok, value = True, float(value)
    else:
        ok = type(value) in types
    if not ok or (meta["choices"] and value not in meta["choices"]):
        raise UserError(f"{shown}: expected {type_name(item)} ({meta['doc']}).")
    if isinstance(value, str):
        _check_text(shown, value)
        return value
    for number in value if isinstance(value, tuple) else (value,):
        if number is not None:
            _check_range(shown, number, meta)
    return value + 0.0 if type(value) is float else value  # -0.0 becomes 0.0


def _check_range(shown: str, number: int | float, meta: Mapping[str, Value]) -> None:
    if isinstance(number, float) and not math.isfinite(number):
        raise UserError(f"{shown}: must be a finite number ({meta['doc']}).")
    largest = _LARGEST.get(type(number))
    low = meta["low"] if meta["low"] is not None or largest is None else -largest
    high = meta["high"] if meta["high"] is not None else largest
    if low is not None and number < low:
        raise UserError(f"{shown}: must be at least {low} ({meta['doc']}).")
    if high is not None and number > high:
        raise UserError(f"{shown}: must be at most {high} ({meta['doc']}).")


def _check_text(shown: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{shown}: not valid Unicode text.") from None
    if any(character < " " for character in value):
        raise UserError(f"{shown}: contains a control character (a line break, a NUL ...).")


def show(value: Value, *, quote: bool = True) -> str:
    """Return a value for a message, in at most about two hundred printable characters."""
    try:
        text = (
            value if isinstance(value, str) and not quote and value.isprintable() else repr(value)
        )
    except Exception:  # an int with more digits than Python prints, or a user's own object
        text = f"a value of type {type(value).__name__}"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 200 else f"{text[:150]} ... ({len(text):,} characters)"


def hint(near: Sequence[str]) -> str:
    """Suggest the nearest known name, if there is one."""
    return f" Did you mean {near[0]!r}?" if near else ""
