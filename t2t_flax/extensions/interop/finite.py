"""The one check of the numbers of parameters, where they come in from a file, and where they go out to a smaller type."""

from collections.abc import Mapping

import numpy as np

from t2t_flax.errors import UserError


def check_finite(arrays: Mapping[str, np.ndarray], file: object) -> None:
    """Raises UserError, naming the file and the array, for one with a number that is not finite (NaN or an infinity)."""
    for name, x in arrays.items():
        if x.dtype.kind not in "iub" and not np.isfinite(x).all():
            raise UserError(f"{file}: {name!r} {_counted(x)}: the file is damaged, or its training has diverged.")


def _counted(x: np.ndarray) -> str:
    return f"holds {np.count_nonzero(~np.isfinite(x)):,} of {x.size:,} numbers that are not finite"


def check_representable(params: Mapping[str, np.ndarray], dtype: str) -> None:
    """Raises UserError, naming the array, for a number that is too large for the type of exported weights, "float16" or
    "int8_float16"; the other types have the range of float32.
    """
    largest = float(np.finfo(np.float16).max)
    for name, x in params.items() if dtype.endswith("_float16") or dtype == "float16" else ():
        if (most := float(np.max(np.abs(x), initial=0.0))) > largest:
            raise UserError(
                f"--quantization={dtype}: {name} has a number of {most:g}, more than the {largest:g} that float16 can hold. "
                "Export it in float32 or bfloat16."
            )
