"""`python -m t2t_flax COMMAND ...`"""

import errno
import gc
import importlib
import sys

from t2t_flax.errors import FAILURE, OK, USER_ERROR, WRITE_HINT, UserError
from t2t_flax.registry import COMMANDS, load_extensions
from t2t_flax.version import __version__

# Errors of the path itself, such as a folder in place of a file: a restart cannot help.
_WRONG_PATH = (
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.EEXIST,
    errno.ENXIO,
)


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code.

    0 finished, 75 stopped with everything saved, 2 user error, 3 diverged, 1 other.
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in ("-V", "--version"):
        print(f"t2t_flax {__version__}")
        return OK
    try:
        load_extensions()
        if not argv or argv[0] in ("-h", "--help"):
            print(usage())
            return OK if argv else USER_ERROR
        if argv[0] not in COMMANDS:
            print(f"t2t_flax: unknown command {argv[0]!r}\n\n{usage()}", file=sys.stderr)
            return USER_ERROR
        # Modules and traced programs are many long-lived objects: at the default threshold of 700
        # the collector would scan them again and again.
        gc.set_threshold(max(100_000, gc.get_threshold()[0]))
        command = importlib.import_module(COMMANDS[argv[0]].module)
    except UserError as error:  # a module of T2T_EXTENSIONS
        print(f"t2t_flax: {error}", file=sys.stderr)
        return USER_ERROR
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("t2t_flax"):
            raise
        words = " ".join(["t2t_flax", *argv[:1]])
        print(
            f"{words}: the package {error.name} is not installed in {sys.executable}: pip install"
            " -r requirements.txt",
            file=sys.stderr,
        )
        return USER_ERROR
    try:
        return command.run(argv[1:])
    except UserError as error:
        print(f"t2t_flax {argv[0]}: {error}", file=sys.stderr)
        return USER_ERROR
    except BrokenPipeError:  # the reader of the output has ended, as in `| head`
        sys.stderr.close()
        return FAILURE
    except OSError as error:
        from t2t_flax.files import is_write_refused

        if is_write_refused(error):
            print(f"t2t_flax {argv[0]}: {error}. {WRITE_HINT}", file=sys.stderr)
            return USER_ERROR
        if error.errno in _WRONG_PATH:
            print(f"t2t_flax {argv[0]}: {error}. Give another path.", file=sys.stderr)
            return USER_ERROR
        raise


def usage() -> str:
    """Return the list of commands, one per line."""
    lines = [f"  {name:14} {command.summary}" for name, command in COMMANDS.items()]
    hint = (
        "`python -m t2t_flax COMMAND --help` shows the flags of a command, `--version` the version."
    )
    return "\n".join(["usage: python -m t2t_flax COMMAND ...", "", *lines, "", hint])


if __name__ == "__main__":
    sys.exit(main())
