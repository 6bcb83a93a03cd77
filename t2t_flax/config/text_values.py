"""Parses the values of keys that are small texts: sources of data.train, data.valid and data.test, and mesh.rules."""

import re
from collections.abc import Sequence

from t2t_flax.errors import UserError

FORM = "NAME=SRC,TGT; NAME=SRC,TGT"
RESERVED = ("train", "valid", "test")
VALID_PREFIX = "valid."
"""Before the names of validation sets, where they stand beside those of test sets."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_ENTRY = re.compile(r"\s*([^=/\\,:;\s]+)\s*=(.*)", re.DOTALL)


def parse_test_sets(spec: str) -> dict[str, str]:
    """The sources of data.test by name, in order: `{"test": spec}` for a single one without a name, `{}` for none; see
    `_parse`.
    """
    return _parse(spec, "test", "test set", RESERVED)


def parse_valid_sets(spec: str) -> dict[str, str]:
    """The sources of data.valid by name, in order: `{"valid": spec}` for a single one without a name, `{"valid.NAME": ...}` for
    those with names, `{}` for none; see `_parse`.
    """
    sources = _parse(spec, "valid", "validation set", RESERVED)
    return {name if name == "valid" else VALID_PREFIX + name: source for name, source in sources.items()}


def parse_train_sources(spec: str) -> dict[str, str]:
    """The sources of data.train by name, in order: `{"train": spec}` for a single one without a name; see `_parse`."""
    return _parse(spec, "train", "training source", ())


def _parse(spec: str, split: str, what: str, reserved: tuple[str, ...]) -> dict[str, str]:
    """A value that begins with `NAME=` is a list of named sources, separated by semicolons; everything else is one source,
    in whose paths both characters may occur. Write `./NAME=...` for a path that itself begins like `NAME=`.
    Raises UserError for a name that a file cannot have, a name used twice, and a part without name or source.
    """
    key = f"config.data.{split} = {spec!r}"
    if not spec.strip():
        return {}
    parts = [part for part in spec.split(";") if part.strip()]
    if not _ENTRY.fullmatch(parts[0]):
        if any(map(_ENTRY.fullmatch, parts[1:])):
            raise UserError(f"{key}: the first {what} has no name. Write several as {FORM!r}.")
        return {split: spec}
    sources: dict[str, str] = {}
    for part in parts:
        entry = _ENTRY.fullmatch(part)
        if not entry:
            raise UserError(f"{key}: {part.strip()!r} has no name. Write several {what}s as {FORM!r}.")
        name, source = entry[1], entry[2].strip()
        if not _NAME.fullmatch(name):
            raise UserError(
                f"{key}: {name!r} cannot name a {what}, because it becomes a file name: use at "
                "most 64 letters, digits, '_', '-' and '.', beginning with a letter or digit."
            )
        if name.lower() in reserved:
            raise UserError(f"{key}: {name!r} is the name of a split; give the {what} another name.")
        if not source:
            raise UserError(f"{key}: the {what} {name!r} names no source. Expected {FORM!r}.")
        if name.lower() in map(str.lower, sources):
            raise UserError(f"{key}: two {what}s are named {name!r}.")
        sources[name] = source
    return sources


def named_entries(key: str, text: str, names: Sequence[str], have: str = "data.train has") -> dict[str, str]:
    """The values of `NAME=VALUE, NAME=VALUE`, by name. Raises UserError for a name that is not among `names`, which are those
    that config groups `have`.
    """
    entries: dict[str, str] = {}
    for entry in (entry for entry in text.split(",") if entry.strip()):
        name, equals, value = (part.strip() for part in entry.partition("="))
        if not equals or not value:
            raise UserError(f"{key}: {entry.strip()!r} is not of the form NAME=VALUE.")
        if name not in names:
            raise UserError(f"{key}: config.{have} no source {name!r}; the sources are {', '.join(names) or 'none'}.")
        if name in entries:
            raise UserError(f"{key} names {name} twice.")
        entries[name] = value
    return entries


LOGICAL_AXES = {
    "vocab": "rows of an embedding",
    "table": "columns of an embedding",
    "embed": "d_model of a matrix",
    "heads": "heads of an attention matrix",
    "kv_heads": "heads of keys and values, if model.num_kv_heads makes them fewer; as `heads` if not named",
    "kv": "width of a head",
    "mlp": "d_ff",
    "norm": "scales and biases of a norm",
    "position": "rows of learned positions",
}
MESH_AXES = ("data", "fsdp", "tensor")
# Embeddings by rows only: with divided columns XLA would gather the whole table for every lookup.
DEFAULT_RULES = "vocab=fsdp+tensor embed=fsdp heads=tensor mlp=tensor"


def sharding_rules(text: str) -> dict[str, tuple[str, ...]]:
    """`{"vocab": ("fsdp", "tensor"), ...}` with every logical axis; () = not sharded, as is an axis that is not named.

    Raises UserError for an unknown axis, and for one that is named twice.
    """
    rules: dict[str, tuple[str, ...]] = {}
    for part in text.replace(",", " ").split():
        name, equals, axes = part.partition("=")
        chosen = tuple(axis for axis in axes.split("+") if axis)
        if not equals or name not in LOGICAL_AXES or name in rules:
            raise UserError(
                f"config.mesh.rules: {part!r} is not AXIS=MESH_AXIS with each AXIS at most once. Axes: "
                f"{', '.join(f'{axis} ({meaning})' for axis, meaning in LOGICAL_AXES.items())}."
            )
        if not set(chosen) <= set(MESH_AXES) or len(set(chosen)) < len(chosen):
            raise UserError(f"config.mesh.rules: {part!r} is not {', '.join(MESH_AXES)} joined by +.")
        rules[name] = chosen
    rules.setdefault("kv_heads", rules.get("heads", ()))
    return {name: rules.get(name, ()) for name in LOGICAL_AXES}
