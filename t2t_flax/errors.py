"""Exit codes, and errors for a user's mistake and for a run that diverged."""

import importlib.util
from pathlib import Path

OK, FAILURE, USER_ERROR = 0, 1, 2
DIVERGED = 3
"""A loss, gradient or parameter was not finite.

The run is deterministic: restarting it unchanged cannot help.
"""
STOPPED = 75
"""Stopped by a signal with everything saved: the same command resumes.

The code is EX_TEMPFAIL of sysexits.h.
"""
WRITE_HINT = "Free disk space or fix the permissions, then rerun the same command."


class UserError(Exception):
    """Mistake in the input.

    The message names its place, the expected input and a remedy. The command line prints it without
    a traceback and exits with code 2.
    """


class NonFiniteUpdate(Exception):
    """Update `step` was not applied: loss, gradient norm or parameters not finite."""

    def __init__(self, step: int, reason: str):
        super().__init__(reason)
        self.step = step


def first_line(error: BaseException, *, limit: int = 300) -> str:
    """Return the first line of an error's message, or its type if it has no message.

    Args:
        limit: maximum number of characters.
    """
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:limit]


def install_hint(extra: str) -> str:
    """Return the command that installs an extra of pyproject.toml.

    It ends an error message.
    """
    if (Path(__file__).parents[1] / "pyproject.toml").is_file():
        return f"pip install -e '.[{extra}]' in the checkout"
    return f"pip install 't2t-flax[{extra}]'"


def require(module: str, extra: str, what: str) -> None:
    """Raise UserError, with the install command, if an optional module is missing.

    Args:
        what: name of the part that needs the module.
    """
    if importlib.util.find_spec(module) is None:
        raise UserError(f"{what} needs the package {module}: {install_hint(extra)}.")
