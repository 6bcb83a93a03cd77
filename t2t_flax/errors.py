"""Exit codes, and the one error that a user's mistake raises."""

OK, FAILURE, USER_ERROR = 0, 1, 2
DIVERGED = 3
"""A loss, gradient or parameter was not finite. The run is deterministic, so restarting it unchanged cannot help."""
STOPPED = 75
"""By a signal, everything saved: the same command goes on (EX_TEMPFAIL of sysexits.h)."""
NO_ROOM = "Make room, or see to the permission, and give the same command again."


class UserError(Exception):
    """A mistake in the input: the message says what was wrong, where, what was expected and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


_OPTIONAL = {"gcs": "gcsfs", "s3": "s3fs", "sweep": "optuna submitit", "plan": "'jax[tpu]'", "plan-gpu": "'jax[cuda12]'"}
"""Packages by the extra of pyproject.toml that brings them."""


def install_hint(extra: str) -> str:
    """The commands that install an optional part, for the end of an error message. t2t_flax itself is not on PyPI."""
    return f"pip install -e '.[{extra}]' in the checkout, or pip install {_OPTIONAL[extra]}"
