"""Kernels of the model as matrices."""

Axes = tuple[int | tuple[int, ...], int | tuple[int, ...]]
"""(axes that are summed over, axes that are produced) of a kernel as a matrix.

The other axes number matrices.
"""

MATRIX_AXES: dict[str, Axes] = {
    "query": (0, (1, 2)),  # [d_model, heads, width]: one matrix of all heads
    "key": (0, (1, 2)),
    "value": (0, (1, 2)),
    "out": ((0, 1), 2),  # [heads, width, d_model]
}
"""Axes of kernels of more than two axes, by the name of their module."""


def matrix_axes_of(path: tuple[str, ...], shape: tuple[int, ...]) -> Axes | None:
    """Return the axes of a kernel; None for a table, a norm and a bias.

    Its path is such as ("encoder_0", "self_attention", "query", "kernel"). Raises ValueError for a
    kernel of three axes that has no row in the table.
    """
    *_, module, name = ("", *path)
    if name != "kernel":
        return None
    if len(shape) == 2:
        return 0, 1
    if module not in MATRIX_AXES:
        raise ValueError(
            f"which axes of {'/'.join(path)} {list(shape)} are inputs? Add it to MATRIX_AXES."
        )
    return MATRIX_AXES[module]
