"""Exit codes, and the errors that end a command with one of its own: a user's mistake, and a run that diverged."""

import importlib.util

OK, FAILURE, USER_ERROR = 0, 1, 2
DIVERGED = 3
"""A loss, gradient or parameter was not finite. The run is deterministic: restarting it unchanged cannot help."""
STOPPED = 75
"""Stopped by a signal with everything saved: the same command resumes (EX_TEMPFAIL of sysexits.h)."""
WRITE_HINT = "Free disk space or fix the permissions, then rerun the same command."


class UserError(Exception):
    """A mistake in the input: the message says what was wrong, where, what was expected and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


class NonFiniteUpdate(Exception):
    """Loss, gradient norm or parameters of update `step` were not finite; it was not applied."""

    def __init__(self, step: int, reason: str):
        super().__init__(reason)
        self.step = step


def first_line(error: BaseException, *, limit: int = 300) -> str:
    """The first line of an error's message, at most `limit` characters; its type if it has no message."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:limit]


def install_hint(extra: str) -> str:
    """The command that installs an optional part, an extra of pyproject.toml, to end an error message with."""
    return f"pip install -e '.[{extra}]' in the checkout, or the extra {extra} with what you installed t2t_flax from"


def require(module: str, extra: str, what: str) -> None:
    """Raises UserError, with the command that installs it, if the module of an optional part is missing; what: who needs it."""
    if importlib.util.find_spec(module) is None:
        raise UserError(f"{what} needs the package {module}: {install_hint(extra)}.")
