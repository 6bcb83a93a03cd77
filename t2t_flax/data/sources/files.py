"""Files named in the spec of a source."""

import glob
import os

from etils import epath

from t2t_flax.data.sources import Context
from t2t_flax.errors import UserError
from t2t_flax.files import expand_home


def existing_file(name: str, context: Context) -> epath.Path:
    """Return the path of a file named in a spec.

    Raises UserError if it is not a file that can be read repeatedly.
    """
    path = path_of(name, context)
    if not path.exists():
        hint = relative_to(name, context)
        for path_with_name in glob.glob(
            f"*={glob.escape(name.partition('/')[0])}", root_dir=context.root or "."
        ):
            hint += (
                f". What stands before = is the name of a source: write ./{path_with_name} for a"
                " path"
            )
        raise UserError(f"{context.label}: there is no file {path}{hint}")
    if path.is_dir():
        raise UserError(f"{context.label}: {path} is a folder; name a file in it")
    check_rereadable(path, context.label)
    return path


def check_rereadable(path: epath.Path, label: str) -> None:
    """Raise UserError for a pipe or a device, which can be read only once."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(
            f"{label}: {path} is a pipe or a device, and a corpus is read more than once: save it"
            " to a file"
        )


def path_of(name: str, context: Context) -> epath.Path:
    """Return the path of a file named in a spec."""
    return epath.Path(context.root or ".") / epath.Path(expand_home(name, context.label))


def relative_to(name: str, context: Context) -> str:
    """Return a note for messages on the folder of a relative path."""
    relative = not (context.root or path_of(name, context).is_absolute())
    return f" (relative to {os.getcwd()}; config.data.root is empty)" if relative else ""
