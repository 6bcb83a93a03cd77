"""Data sources: text files, TFDS, the built-in corpus, and what extensions add to `registry.SOURCES`."""

import importlib
from typing import Any

from t2t_flax.data.sources import text
from t2t_flax.data.sources.base import Context, Source
from t2t_flax.errors import UserError
from t2t_flax.registry import SOURCES, absent_extension, load_extensions


def open_source(spec: str, *, root: str = "", source_language: str, target_language: str, key: str = "") -> Source:
    """The source that `spec` names, in one of the forms of `registry.SOURCES`, or as text files.

    root: folder of relative paths; for TFDS its data_dir. key: the config key that holds `spec`, for error messages. Raises
    UserError for an unknown form and for a source that does not exist.
    """
    label = f"{key} = {spec!r}" if key else repr(spec)
    module = _module_of(spec)
    if module is None:
        forms = ", ".join([*(form.shown for form in SOURCES.values()), text.SHOWN])
        absent = absent_extension("sources", _prefix(spec))
        raise UserError(f"{label} has no known form.{absent} Known forms: {forms}")
    return module.open_spec(spec, Context(root, (source_language, target_language), label))


def files_of(spec: str) -> list[str]:
    """The files that `spec` names; without a known form, its comma-separated parts."""
    module = _module_of(spec)
    return module.files_of(spec) if module else spec.split(",")


def _module_of(spec: str) -> Any:
    """The module of the form that a spec has; None if it has none."""
    load_extensions()
    name = spec.strip()
    name = next((name.removesuffix(suffix) for suffix in text.SUFFIXES if name.endswith(suffix)), name)
    for form in SOURCES.values():
        if form.prefix and _prefix(spec) == form.prefix or "," not in name and name.endswith(form.suffixes or ("\0",)):
            return importlib.import_module(form.module)
    return text if len(text.files_of(spec)) >= 2 and all(text.files_of(spec)) else None


def _prefix(spec: str) -> str:
    return spec.partition(":")[0].strip()
