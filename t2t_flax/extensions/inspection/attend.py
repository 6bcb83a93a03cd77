"""`attend`: the attention of every layer and head for a pair."""

from typing import TYPE_CHECKING

from t2t_flax.cli import arguments
from t2t_flax.extensions.inspection import attention
from t2t_flax.registry import LINES

if TYPE_CHECKING:
    from t2t_flax.extensions.inspection.maps import AttentionMaps


def run(argv: list[str]) -> int:
    """Exit code 0 when the arrays are written."""
    parser = arguments.parser(
        "attend",
        "Writes the attention weights of every layer and head for one pair: encoder [L, N, S, S], decoder\n"
        "[L, N, T, T] and cross [L, N, T, S] with token labels, as .npz; prints each head's entropy and mean\n"
        "distance, and the source token that each target token attends to most.",
        epilog="Example:\n"
        "  python -m t2t_flax attend --workdir=runs/toy --source='The train leaves on Friday.' \\\n"
        "      --output=attention.npz --picture=attention.png",
    )
    arguments.add_workdir(parser)
    arguments.add_checkpoint(parser)
    arguments.add_flags(parser, LINES)
    parser.add_argument("--source", required=True, metavar="TEXT", help="the source sentence")
    parser.add_argument("--target", metavar="TEXT", help="the target sentence; default: the run's own translation")
    parser.add_argument("--output", required=True, metavar="FILE.npz", help="file for the arrays")
    parser.add_argument("--picture", metavar="FILE", help="also draw a .png, .pdf or .svg; needs matplotlib")
    args, overrides = arguments.parse(parser, argv)
    arguments.check_output("--output", args.output)
    if args.picture:
        arguments.check_output("--picture", args.picture)
        attention.check_picture(args.picture)
    from t2t_flax.extensions.inspection.maps import attend

    loaded = arguments.load_run(args, overrides)
    source = arguments.Changes(loaded, arguments.given_flags(args)).source(args.source)
    maps = attend(loaded, source, args.target)
    if args.picture:
        attention.draw(maps, args.picture)
    attention.save(maps, args.output)
    print(_table(maps))
    return 0


def _table(maps: "AttentionMaps") -> str:
    lines = ["source  " + " ".join(maps.source_tokens), "target  " + " ".join(maps.target_tokens), ""]
    lines.append("layer             " + "head: entropy in nats / mean distance in tokens")
    for kind in attention.KINDS:
        weights = getattr(maps, kind)
        statistics = zip(attention.entropy(weights), attention.mean_distance(weights), strict=True)
        for layer, heads in enumerate(statistics, 1):
            values = "  ".join(f"{e:.2f}/{d:.1f}" for e, d in zip(*heads, strict=True))
            lines.append(f"{kind:8} {layer:2}       {values}")
    lines += ["", "source token that each target token attends to most (cross-attention, mean of layers and heads)"]
    alignment = maps.cross.mean((0, 1))
    for token, row in zip(maps.target_tokens, alignment, strict=True):
        best = int(row.argmax())
        lines.append(f"  {token:16} {maps.source_tokens[best]} ({row[best]:.2f})")
    return "\n".join(lines)
