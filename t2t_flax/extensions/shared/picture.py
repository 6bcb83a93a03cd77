"""Pictures by matplotlib, which is optional."""

import io
from typing import Any

from etils import epath

from t2t_flax.errors import UserError, require

FORMATS = (".png", ".pdf", ".svg")
STYLE = {
    "svg.hashsalt": "t2t_flax",  # equal figures have equal bytes
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
}
"""Settings of matplotlib for all pictures."""


def check_picture(flag: str, path: epath.PathLike) -> None:
    """Raise UserError for an unsupported file type, or if matplotlib is not installed."""
    if epath.Path(path).suffix not in FORMATS:
        raise UserError(f"{flag}={path}: a picture is a .png, .pdf or .svg file.")
    require("matplotlib", "plots", flag)


def render(figure: Any, suffix: str) -> bytes:
    """Return the file of a matplotlib figure, without the time.

    Args:
        suffix: one of `FORMATS`.
    """
    import matplotlib

    out = io.BytesIO()
    undated = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(suffix)
    with matplotlib.rc_context(STYLE):
        figure.savefig(out, format=suffix.removeprefix("."), dpi=120, metadata=undated)
    return out.getvalue()
