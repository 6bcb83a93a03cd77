"""Parses data.test: one test set, or several with names."""

import re

from t2t_flax.errors import UserError

FORM = "NAME=SRC,TGT; NAME=SRC,TGT"
RESERVED = ("train", "valid", "test")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_ENTRY = re.compile(r"\s*([^=/\\,:;\s]+)\s*=(.*)", re.DOTALL)


def parse_test_sets(spec: str) -> dict[str, str]:
    """The sources of data.test by name, in order: `{"test": spec}` for a single one without a name, `{}` for none.

    A value that begins with `NAME=` is a list of named sets, separated by semicolons; everything else is one source, in
    whose paths both characters may occur. Write `./NAME=...` for a path that itself begins like `NAME=`.
    Raises UserError for a name that a file cannot have, a name used twice, and a set without name or source.
    """
    if not spec.strip():
        return {}
    parts = [part for part in spec.split(";") if part.strip()]
    if not _ENTRY.fullmatch(parts[0]):
        if any(map(_ENTRY.fullmatch, parts[1:])):
            raise UserError(f"config.data.test = {spec!r}: the first test set has no name. Write several as {FORM!r}.")
        return {"test": spec}
    sets: dict[str, str] = {}
    for part in parts:
        entry = _ENTRY.fullmatch(part)
        if not entry:
            raise UserError(
                f"config.data.test = {spec!r}: {part.strip()!r} has no name. Write several test sets as {FORM!r}."
            )
        name, source = entry[1], entry[2].strip()
        if not _NAME.fullmatch(name):
            raise UserError(
                f"config.data.test = {spec!r}: {name!r} cannot name a test set, because it becomes a file name: use at "
                "most 64 letters, digits, '_', '-' and '.', beginning with a letter or digit."
            )
        if name.lower() in RESERVED:
            raise UserError(
                f"config.data.test = {spec!r}: {name!r} is the name of a split; give the test set another name."
            )
        if not source:
            raise UserError(f"config.data.test = {spec!r}: the test set {name!r} names no source. Expected {FORM!r}.")
        if name.lower() in map(str.lower, sets):
            raise UserError(f"config.data.test = {spec!r}: two test sets are named {name!r}.")
        sets[name] = source
    return sets
