"""The one check of the numbers of parameters, where they come in from a file, and where they go out to a smaller type."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from t2t_flax.errors import UserError


def check_finite(arrays: Mapping[str, np.ndarray], file: object) -> None:
    """Raises UserError, naming the file and the array, for one with a number that is not finite (NaN or an infinity)."""
    for name, x in arrays.items():
        if x.dtype.kind not in "iub" and not np.isfinite(x).all():
            raise UserError(f"{file}: {name!r} {_counted(x)}: the file is damaged, or its training has diverged.")


def _counted(x: np.ndarray) -> str:
    return f"holds {np.count_nonzero(~np.isfinite(x)):,} of {x.size:,} numbers that are not finite"


def not_finite(params: Any) -> str | None:
    """The path of the first parameter with a number that is not finite, such as "encoder_0/feed_forward/Einsum_0/kernel"; None
    if all are finite. params: a tree of arrays on devices; the same answer on all processes that hold shards of them.
    """
    import jax

    paths, leaves = zip(*jax.tree.leaves_with_path(params), strict=True)
    finite = np.asarray(_program()(leaves))
    return None if finite.all() else "/".join(str(entry.key) for entry in paths[int(np.argmin(finite))])


@functools.cache
def _program() -> Any:
    import jax
    import jax.numpy as jnp

    return jax.jit(lambda leaves: jnp.stack([jnp.isfinite(x).all() for x in leaves]))


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
