"""The one error that a user's mistake raises."""


class UserError(Exception):
    """A mistake in the input: the message says what was wrong, where, what was expected and what to do.

    The command line prints it without a traceback and exits with code 2.
    """
