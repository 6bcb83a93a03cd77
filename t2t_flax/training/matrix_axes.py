"""The axes by which a kernel is a matrix, for what treats it as one: Muon and low-rank adapters."""

Axes = tuple[int | tuple[int, ...], int | tuple[int, ...]]
"""(axes that are summed over, axes that are produced); the others number matrices."""

_ATTENTION_INPUT, _ATTENTION_OUTPUT = (0, (1, 2)), ((0, 1), 2)
_AXES: dict[str, Axes] = {
    "query": _ATTENTION_INPUT,  # [d_model, heads, width]: one matrix of all heads
    "key": _ATTENTION_INPUT,
    "value": _ATTENTION_INPUT,
    "out": _ATTENTION_OUTPUT,  # [heads, width, d_model]
    "taps": (1, 2),  # [taps, d_model, d_model]: one matrix per tap
}


def matrix_axes_of(path: tuple[str, ...], shape: tuple[int, ...]) -> Axes | None:
    """The axes of the kernel at a path such as ("encoder_0", "self_attention", "query", "kernel"); None for a table, a norm
    and a bias. Raises ValueError for a kernel of three axes that has no row in the table.
    """
    *_, module, name = ("", *path)
    if name != "kernel":
        return None
    if len(shape) == 2:
        return 0, 1
    if module not in _AXES:
        raise ValueError(f"which axes of {'/'.join(path)} {list(shape)} are inputs? Add it to _AXES.")
    return _AXES[module]
