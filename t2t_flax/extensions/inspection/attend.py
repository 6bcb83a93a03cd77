"""`attend`: attention of every layer and head for a pair.

Writes arrays, statistics and a picture.
"""

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from etils import epath

from t2t_flax.cli import arguments
from t2t_flax.extensions.shared.picture import check_picture, render
from t2t_flax.files import atomic_write
from t2t_flax.registry import LINES

if TYPE_CHECKING:
    from t2t_flax.extensions.shared.attention_maps import AttentionMaps

KINDS = ("encoder", "decoder", "cross")
_LABELS = ("source_tokens", "target_tokens", "decoder_tokens")


def run(argv: list[str]) -> int:
    """Return exit code 0 when the arrays are written."""
    parser = arguments.parser(
        "attend",
        "Writes the attention weights of every layer and head for one pair: encoder [L, N, S, S],"
        " decoder\n[L, N, T, T] and cross [L, N, T, S] with token labels, as .npz; prints each"
        " head's entropy and mean\ndistance, and the source token that each target token attends to"
        " most.",
        epilog=(
            "Example:\n  python -m t2t_flax attend --workdir=runs/toy --source='The train leaves on"
            " Friday.' \\\n      --output=attention.npz --picture=attention.png"
        ),
    )
    arguments.add_workdir(parser)
    arguments.add_checkpoint(parser)
    arguments.add_flags(parser, LINES)
    parser.add_argument("--source", required=True, metavar="TEXT", help="the source sentence")
    parser.add_argument(
        "--target", metavar="TEXT", help="the target sentence; default: the run's own translation"
    )
    parser.add_argument("--output", required=True, metavar="FILE.npz", help="file for the arrays")
    parser.add_argument(
        "--picture", metavar="FILE", help="also draw a .png, .pdf or .svg; needs matplotlib"
    )
    args, overrides = arguments.parse(parser, argv)
    arguments.check_output("--output", args.output)
    if args.picture:
        arguments.check_output("--picture", args.picture)
        check_picture("--picture", args.picture)
    from t2t_flax.extensions.shared.attention_maps import attend

    loaded = arguments.load_run(args, overrides)
    source = arguments.Changes(loaded, arguments.given_flags(args)).source(args.source)
    maps = attend(loaded, source, args.target)
    if args.picture:
        draw(maps, args.picture)
    save(maps, args.output)
    print(_table(maps))
    return 0


def entropy(weights: np.ndarray) -> np.ndarray:
    """Return the mean entropy in nats of each head's rows, [L, N, T, S] -> [L, N].

    0 = all weight on one token.
    """
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    return -(weights * logs).sum(-1).mean(-1)


def mean_distance(weights: np.ndarray) -> np.ndarray:
    """Return the expected |row - column| in tokens, [L, N, T, S] -> [L, N].

    The weights are the probabilities.
    """
    rows, columns = (np.arange(n) for n in weights.shape[-2:])
    return (weights * np.abs(rows[:, None] - columns)).sum(-1).mean(-1)


def save(maps: "AttentionMaps", path: epath.PathLike) -> None:
    """Write an .npz with the three arrays and their token labels."""
    buffer = io.BytesIO()
    labels = {name: np.array(getattr(maps, name)) for name in _LABELS}
    arrays: dict[str, Any] = {kind: getattr(maps, kind) for kind in KINDS} | labels
    np.savez_compressed(buffer, **arrays)
    atomic_write(path, buffer.getvalue())


def draw(maps: "AttentionMaps", path: epath.PathLike) -> None:
    """Plot one row of heads per layer of each kind."""
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
            axis.imshow(
                getattr(maps, kind)[layer, head], vmin=0, vmax=1, cmap="Blues", aspect="auto"
            )
            axis.set_title(f"{kind} {layer + 1}, head {head + 1}", fontsize=7)
            axis.set_xticks(range(len(columns)), columns, rotation=90, fontsize=5)
            axis.set_yticks(range(len(rows)), rows if head == 0 else [], fontsize=5)
    atomic_write(path, render(figure, epath.Path(path).suffix))


def _table(maps: "AttentionMaps") -> str:
    lines = [
        "source  " + " ".join(maps.source_tokens),
        "target  " + " ".join(maps.target_tokens),
        "",
    ]
    lines.append("layer             " + "head: entropy in nats / mean distance in tokens")
    for kind in KINDS:
        weights = getattr(maps, kind)
        statistics = zip(entropy(weights), mean_distance(weights), strict=True)
        for layer, heads in enumerate(statistics, 1):
            values = "  ".join(f"{e:.2f}/{d:.1f}" for e, d in zip(*heads, strict=True))
            lines.append(f"{kind:8} {layer:2}       {values}")
    lines += [
        "",
        (
            "source token that each target token attends to most (cross-attention, mean of layers"
            " and heads)"
        ),
    ]
    alignment = maps.cross.mean((0, 1))
    for token, row in zip(maps.target_tokens, alignment, strict=True):
        best = int(row.argmax())
        lines.append(f"  {token:16} {maps.source_tokens[best]} ({row[best]:.2f})")
    return "\n".join(lines)
