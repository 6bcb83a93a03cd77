"""A config key: a dataclass field that carries its meaning."""

from dataclasses import field
from typing import Any


def key(default: Any, doc: str, *, unit: str = "", choices=(), low=None, high=None, mutable: bool = False) -> Any:
    """A dataclass field that carries its meaning, unit and range (`low` and `high` are inclusive)."""
    return field(
        default=default, metadata=dict(doc=doc, unit=unit, choices=choices, low=low, high=high, mutable=mutable)
    )
