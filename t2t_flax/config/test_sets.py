"""The value of data.test: one test set, or several by name."""

import re

from t2t_flax.errors import UserError

FORM = "NAME=SRC,TGT; NAME=SRC,TGT"
RESERVED = ("train", "valid", "test")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_ENTRY = re.compile(r"\s*([^=/\\,:;\s]+)\s*=(.*)", re.DOTALL)


def parse_test_sets(spec: str) -> dict[str, str]:
    """The sources of data.test by name, in order: `{"test": spec}` for a single one without a name, `{}` for none.

    A value that begins with `NAME=` is a list of named sets, separated by semicolons; everything else is one source, in
    whose paths both characters may occur. A path that itself begins like `NAME=` is written `./NAME=...`.
    Raises UserError for a name that no file can bear, a name used twice, and a set without name or source.
    """
    if not spec.strip():
        return {}
    parts = [part for part in spec.split(";") if part.strip()]
    if not _ENTRY.fullmatch(parts[0]):
        if any(map(_ENTRY.fullmatch, parts[1:])):
            raise UserError(f"config.data.test = {spec!r}: the first test set has no name. Several are {FORM!r}.")
        return {"test": spec}
    found: dict[str, str] = {}
    for part in parts:
        entry = _ENTRY.fullmatch(part)
        if not entry:
            raise UserError(
                f"config.data.test = {spec!r}: {part.strip()!r} has no name. Several test sets are {FORM!r}."
            )
        name, source = entry[1], entry[2].strip()
        if not _NAME.fullmatch(name):
            raise UserError(
                f"config.data.test = {spec!r}: {name!r} cannot name a test set, as records bear its name: use at most 64 "
                "letters, digits, '_', '-' and '.', beginning with a letter or digit."
            )
        if name.lower() in RESERVED:
            raise UserError(f"config.data.test = {spec!r}: {name!r} means a split; give the test set another name.")
        if not source:
            raise UserError(f"config.data.test = {spec!r}: the test set {name!r} names no source. Expected {FORM!r}.")
        if name.lower() in map(str.lower, found):
            raise UserError(f"config.data.test = {spec!r}: two test sets are called {name!r}.")
        found[name] = source
    return found
