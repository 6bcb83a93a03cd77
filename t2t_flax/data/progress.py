"""How a preparation says what it does."""

from collections.abc import Callable

Report = Callable[[str, int, int | None, str], None]
"""Called with a stage, how much of it is done, of how much (None = unknown), and the unit: ("hash the files", 3, 17, "MiB")."""


def silent(stage: str, done: int, total: int | None, unit: str) -> None:
    """A `Report` that says nothing."""
