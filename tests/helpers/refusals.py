"""Assert that a user's mistake is refused with a message that names what to change."""

import contextlib
import io
from collections.abc import Iterator, Sequence

import pytest

from t2t_flax.__main__ import main
from t2t_flax.errors import USER_ERROR, UserError

MOST_WORDS = 2
"""Words in a name: `line 3` is one. A sentence is not."""


def assert_names(message: str, *names: str) -> None:
    """Assert that a message names each config key, flag, file, line or value."""
    sentences = [name for name in names if len(name.split()) > MOST_WORDS]
    assert not sentences, f"name a key, flag, file or line, not a sentence: {sentences}"
    missing = [name for name in names if name not in message]
    assert not missing, f"the message does not name {missing}: {message}"


@contextlib.contextmanager
def refused(*names: str, error: type[BaseException] = UserError) -> Iterator[pytest.ExceptionInfo]:
    """Assert that the block raises `error`, and that its message names each of `names`."""
    with pytest.raises(error) as caught:
        yield caught
    assert_names(str(caught.value), *names)


def refused_command(argv: Sequence[str], *names: str, code: int = USER_ERROR) -> str:
    """Run a command line that must fail with exit code `code` and name each of `names`.

    Returns:
      What the command wrote to standard error.
    """
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        try:
            found = main([str(word) for word in argv])
        except SystemExit as stop:
            found = stop.code
    message = errors.getvalue()
    assert found == code, f"exit code {found}: {message}"
    assert "Traceback" not in message, message
    assert_names(message, *names)
    return message
