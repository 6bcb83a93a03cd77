"""Statistics, files and pictures of attention weights."""

import io
from typing import TYPE_CHECKING

import numpy as np
from etils import epath

from t2t_flax.errors import UserError, require
from t2t_flax.filesystem import atomic_write

if TYPE_CHECKING:
    from t2t_flax.extensions.inspection.maps import AttentionMaps

KINDS = ("encoder", "decoder", "cross")
_LABELS = ("source_tokens", "target_tokens", "decoder_tokens")


def entropy(weights: np.ndarray) -> np.ndarray:
    """Mean entropy in nats of each head's rows, [L, N, T, S] -> [L, N]; 0 = all weight on one token."""
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    return -(weights * logs).sum(-1).mean(-1)


def mean_distance(weights: np.ndarray) -> np.ndarray:
    """Expected |row - column| under the weights in tokens, [L, N, T, S] -> [L, N]."""
    rows, columns = (np.arange(n) for n in weights.shape[-2:])
    return (weights * np.abs(rows[:, None] - columns)).sum(-1).mean(-1)


def save(maps: "AttentionMaps", path: epath.PathLike) -> None:
    """Writes an .npz with the three arrays and their token labels."""
    buffer = io.BytesIO()
    labels = {name: np.array(getattr(maps, name)) for name in _LABELS}
    np.savez_compressed(buffer, **{kind: getattr(maps, kind) for kind in KINDS}, **labels)
    atomic_write(path, buffer.getvalue())


def draw(maps: "AttentionMaps", path: epath.PathLike) -> None:
    """Plots one row of heads per layer of each kind. Raises UserError as `check_picture`."""
    check_picture(path)
    from matplotlib.figure import Figure

    layers = [(kind, layer) for kind in KINDS for layer in range(len(getattr(maps, kind)))]
    heads = max(getattr(maps, kind).shape[1] for kind, _ in layers)
    side = 0.6 + 0.16 * max(len(maps.source_tokens), len(maps.target_tokens))
    figure = Figure(figsize=(side * heads + 1, side * len(layers) + 1), layout="constrained")
    axes = figure.subplots(len(layers), heads, squeeze=False)
    for row, (kind, layer) in zip(axes, layers, strict=True):
        columns = maps.decoder_tokens if kind == "decoder" else maps.source_tokens
        rows = maps.source_tokens if kind == "encoder" else maps.target_tokens
        for head, axis in enumerate(row):
            axis.imshow(getattr(maps, kind)[layer, head], vmin=0, vmax=1, cmap="Blues", aspect="auto")
            axis.set_title(f"{kind} {layer + 1}, head {head + 1}", fontsize=7)
            axis.set_xticks(range(len(columns)), columns, rotation=90, fontsize=5)
            axis.set_yticks(range(len(rows)), rows if head == 0 else [], fontsize=5)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=epath.Path(path).suffix.removeprefix("."), dpi=120)
    atomic_write(path, buffer.getvalue())


def check_picture(path: epath.PathLike) -> None:
    """Raises UserError for an unsupported file type, or if matplotlib is not installed."""
    if epath.Path(path).suffix not in (".png", ".pdf", ".svg"):
        raise UserError(f"{path}: a picture is a .png, .pdf or .svg file.")
    require("matplotlib", "plots", "drawing a picture")
