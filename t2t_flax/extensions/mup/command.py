"""`check_widths`: the coordinate check of a config."""

from collections.abc import Mapping

from etils import epath

from t2t_flax import api
from t2t_flax.cli import arguments
from t2t_flax.config import Config
from t2t_flax.errors import FAILURE, OK, UserError, require
from t2t_flax.extensions.mup import Mup
from t2t_flax.process_setup import prepare_process

_RULE, _PAPER = "with muP", "without"


def run(argv: list[str]) -> int:
    """Exit code 0 where all changes are independent of the width, else 1."""
    parser = arguments.parser(
        "check_widths",
        "Coordinate check: trains models of this config with other widths for a few updates, with the rules of config.mup and\n"
        "without them, and shows how much activations change. With the rules that must not depend on the width.",
        epilog=arguments.OVERRIDE_HELP,
    )
    arguments.add_config(parser)
    widths = (
        "values of d_model, separated by commas; d_ff and heads are scaled with it (default: 1, 2, 4 times base_width)"
    )
    parser.add_argument("--widths", default="", metavar="D,D", help=widths)
    parser.add_argument("--updates", type=arguments.count(1, 1000), default=4, metavar="N", help="default: 4")
    parser.add_argument("--picture", metavar="FILE", help="also draw a .png, .pdf or .svg; needs matplotlib")
    args, overrides = arguments.parse(parser, argv)
    config = api.resolve(args.config, overrides)
    if not (base := Mup.of(config).base_width):
        raise UserError("check_widths needs the width at which the rules are the paper's: set --config.mup.base_width.")
    if args.picture:
        if not args.picture.endswith((".png", ".pdf", ".svg")):
            raise UserError(f"{args.picture}: a picture is a .png, .pdf or .svg file.")
        require("matplotlib", "plots", "--picture")
    widths = _widths(args.widths, base)
    prepare_process(config)
    from t2t_flax.extensions.mup import coordinates, picture

    paper = config.with_values({"mup.base_width": 0, "mup.base_head_width": 0})
    configs = {
        name: {width: coordinates.at_width(one, width) for width in widths}
        for name, one in ((_RULE, config), (_PAPER, paper))
    }
    found = {
        name: {width: coordinates.changes(one, args.updates) for width, one in by_width.items()}
        for name, by_width in configs.items()
    }
    slopes = {name: coordinates.slopes(by_width) for name, by_width in found.items()}
    print(_text(config, found, slopes, args.updates))
    if args.picture:
        picture.draw_changes(found, epath.Path(args.picture), args.updates)
        print(f"picture: {args.picture}")
    return OK if all(map(coordinates.is_flat, slopes[_RULE].values())) else FAILURE


def _widths(text: str, base: int) -> list[int]:
    """The widths of --widths. Raises UserError."""
    parts = text.split(",") if text else [str(base * factor) for factor in (1, 2, 4)]
    numbers = {int(part) for part in parts if part.strip().isdecimal()} - {0}
    if len(numbers) < max(2, len(parts)):
        raise UserError(f"--widths={text}: expected two widths or more, each once, separated by commas: 64,128,256.")
    return sorted(numbers)


def _text(config: Config, found: Mapping, slopes: Mapping[str, Mapping[str, float]], updates: int) -> str:
    widths = list(next(iter(found.values())))
    lines = [
        f"RMS of the change of activations after {updates} updates at a rate of {config.optimizer.peak_lr:g}, by d_model; "
        "slope: the power of d_model with which it grows",
        f"  {'':24} {' '.join(f'{width:>9,}' for width in widths)} {'slope':>7}",
    ]
    for name, by_width in found.items():
        lines.append(f"  {name}")
        for kind, slope in slopes[name].items():
            values = " ".join(f"{by_width[width][kind][-1]:>9.4f}" for width in widths)
            lines.append(f"    {kind:22} {values} {slope:>+7.2f}")
    return "\n".join(lines)
