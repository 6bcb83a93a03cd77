"""`check_sizes`: the coordinate check of a config."""

from collections.abc import Mapping

from etils import epath

from t2t_flax import api
from t2t_flax.cli import arguments
from t2t_flax.config import Config
from t2t_flax.errors import FAILURE, OK, UserError
from t2t_flax.extensions.mup import Mup
from t2t_flax.extensions.shared.picture import check_picture
from t2t_flax.process_setup import prepare_process

_RULE, _PAPER = "with the rules", "without"


def run(argv: list[str]) -> int:
    """Return exit code 0 where all changes are independent of the size, else 1."""
    parser = arguments.parser(
        "check_sizes",
        "Coordinate check: trains models of this config with other widths or depths for a few"
        " updates, with the rules of\nconfig.mup and without them, and shows how much activations"
        " change. With the rules that must not depend on the size.",
        epilog=arguments.OVERRIDE_HELP,
    )
    arguments.add_config(parser)
    widths = (
        "values of d_model, separated by commas; d_ff and heads are scaled with it (default: 1, 2,"
        " 4 times base_width)"
    )
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--widths", default="", metavar="D,D", help=widths)
    either.add_argument(
        "--layers", default="", metavar="L,L", help="numbers of layers of each stack instead"
    )
    parser.add_argument(
        "--updates", type=arguments.count(1, 1000), default=4, metavar="N", help="default: 4"
    )
    parser.add_argument(
        "--picture", metavar="FILE", help="also draw a .png, .pdf or .svg; needs matplotlib"
    )
    args, overrides = arguments.parse(parser, argv)
    config = api.resolve(args.config, overrides)
    key, flag, text = (
        ("base_layers", "layers", args.layers)
        if args.layers
        else ("base_width", "widths", args.widths)
    )
    if not (base := getattr(Mup.of(config), key)):
        raise UserError(
            f"check_sizes --{flag} needs the size at which the rules are the paper's: set"
            f" --config.mup.{key}."
        )
    if args.picture:
        check_picture("--picture", args.picture)
    sizes = _sizes(flag, text, base)
    prepare_process(config)
    from t2t_flax.extensions.mup import coordinates, picture

    check = coordinates.DEPTH if args.layers else coordinates.WIDTH
    without = {"mup.base_layers": 0} | (
        {} if args.layers else {"mup.base_width": 0, "mup.base_head_width": 0}
    )
    configs = {
        name: {size: check.at_size(one, size) for size in sizes}
        for name, one in ((_RULE, config), (_PAPER, config.with_values(without)))
    }
    found = {
        name: {size: coordinates.changes(one, args.updates) for size, one in by_size.items()}
        for name, by_size in configs.items()
    }
    slopes = {name: coordinates.slopes(by_size) for name, by_size in found.items()}
    print(_text(config, check.size, found, slopes, args.updates))
    if args.picture:
        picture.draw_changes(found, epath.Path(args.picture), args.updates, check.size)
        print(f"picture: {args.picture}")
    return OK if all(coordinates.is_flat(slopes[_RULE][kind]) for kind in check.flat) else FAILURE


def _sizes(flag: str, text: str, base: int) -> list[int]:
    """Return the sizes of a flag. Raises UserError."""
    parts = text.split(",") if text else [str(base * factor) for factor in (1, 2, 4)]
    numbers = {int(part) for part in parts if part.strip().isdecimal()} - {0}
    if len(numbers) < max(2, len(parts)):
        raise UserError(
            f"--{flag}={text}: expected two {flag} or more, each once, separated by commas:"
            f" {base},{2 * base},{4 * base}."
        )
    return sorted(numbers)


def _text(
    config: Config,
    size: str,
    found: Mapping,
    slopes: Mapping[str, Mapping[str, float]],
    updates: int,
) -> str:
    sizes = list(next(iter(found.values())))
    lines = [
        (
            f"RMS of the change of activations after {updates} updates at a rate of"
            f" {config.optimizer.peak_lr:g}, by {size}; slope: the power of {size} with which it"
            " grows"
        ),
        f"  {'':24} {' '.join(f'{n:>9,}' for n in sizes)} {'slope':>7}",
    ]
    for name, by_size in found.items():
        lines.append(f"  {name}")
        for kind, slope in slopes[name].items():
            values = " ".join(f"{by_size[n][kind][-1]:>9.4f}" for n in sizes)
            lines.append(f"    {kind:22} {values} {slope:>+7.2f}")
    return "\n".join(lines)
