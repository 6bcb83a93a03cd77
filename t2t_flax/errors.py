"""Exit codes, and the one error that a user's mistake raises."""

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


_OPTIONAL = {
    "gcs": "gcsfs",
    "s3": "s3fs",
    "hf": "transformers huggingface_hub",
    "ctranslate2": "ctranslate2",
    "tfds": "tensorflow-datasets array-record importlib_resources pyarrow",
    "arrow": "pyarrow",
    "plots": "matplotlib",
    "sweep": "optuna matplotlib",
    "serve": "fastapi h11 prometheus-client pydantic pydantic-core python-multipart starlette uvicorn",
    "wandb": "wandb",
    "mlflow": "mlflow-skinny sqlalchemy alembic",
    "trackio": "trackio",
    "langid": "py3langid",
    "mtdata": "mtdata",
    "torch": "'torch>=2.6'",
    "plan": "'jax[tpu]'",
    "plan-gpu": "'jax[cuda13]'",
}
"""Packages by the extra of pyproject.toml that installs them."""


def first_line(error: BaseException, *, limit: int = 300) -> str:
    """The first line of an error's message, at most `limit` characters; its type if it has no message."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:limit]


def install_hint(extra: str) -> str:
    """Commands that install an optional part, in a checkout or beside any installation, to end an error message with."""
    return f"pip install -e '.[{extra}]' in the checkout, or pip install {_OPTIONAL[extra]}"


def require(module: str, extra: str, what: str) -> None:
    """Raises UserError, with the command that installs it, if the module of an optional part is missing; what: who needs it."""
    if importlib.util.find_spec(module) is None:
        raise UserError(f"{what} needs the package {module}: {install_hint(extra)}.")
