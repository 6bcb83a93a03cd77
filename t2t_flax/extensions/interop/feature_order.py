"""The order of the features of the residual stream, which is any order in which all matrices agree.

Marian has all sines before all cosines where the paper interleaves them, with the same wavelengths.
"""

from typing import Any, NamedTuple

import numpy as np

from t2t_flax.extensions.interop.safetensors_file import flatten, unflatten
from t2t_flax.models.embeddings import sinusoid_halves, sinusoid_interleaved

_TOLERANCE = 2e-3  # of float32 sines of angles of thousands
_FIRST_AXIS = ("query", "key", "value", "Einsum_0", "gate", "up")
"""Linear maps that read the residual stream; the others write to it."""


def sines_first(d_model: int) -> np.ndarray:
    """int [D]: our feature at each place of a model that has all sines before all cosines."""
    return np.concatenate([np.arange(0, d_model, 2), np.arange(1, d_model, 2)])


def reordered(params: Any, order: np.ndarray) -> dict[str, Any]:
    """The same model with another order of features: feature k is feature order[k] of `params`."""
    out = {}
    for path, x in flatten(params).items():
        *parents, name = path.split("/")
        module = parents[-1] if parents else ""
        inner = name == "bias" and module in _FIRST_AXIS  # of heads or hidden units
        axis = 0 if name == "kernel" and module in _FIRST_AXIS else -1
        out[path] = x if inner or name == "output_bias" else np.take(x, order, axis)
    return unflatten(out)


class Positions(NamedTuple):
    """model.position and model.position_offset; sines_first: in Marian's order of features."""

    position: str
    position_offset: int = 0
    sines_first: bool = False


def recognize_positions(table: np.ndarray) -> Positions | None:
    """The scheme whose vectors a table [positions, D] holds; None for any other table, such as a learned one."""
    count, d_model = table.shape
    if not np.any(table):
        return Positions("none")
    if d_model % 2:
        return None
    for offset in range(3):
        at = np.arange(count) + offset
        interleaved, halves = (np.asarray(f(at, d_model)) for f in (sinusoid_interleaved, sinusoid_halves))
        for known, positions in (
            (interleaved, Positions("sinusoid_interleaved", offset)),
            (halves, Positions("sinusoid_halves", offset)),
            (interleaved[:, sines_first(d_model)], Positions("sinusoid_interleaved", offset, True)),
        ):
            if np.allclose(table, known, rtol=0, atol=_TOLERANCE):
                return positions
    return None
