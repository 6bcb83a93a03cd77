"""Exit codes, and the one error that a user's mistake raises."""

OK, FAILURE, USER_ERROR = 0, 1, 2
STOPPED = 75
"""By a signal, everything saved: the same command goes on (EX_TEMPFAIL of sysexits.h)."""
NO_ROOM = "Make room, or see to the permission, and give the same command again."


class UserError(Exception):
    """A mistake in the input: the message says what was wrong, where, what was expected and what to do.

    The command line prints it without a traceback and exits with code 2.
    """
