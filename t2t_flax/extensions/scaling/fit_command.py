"""`fit_scaling`: fit a law of the loss to runs."""

import math
from collections.abc import Sequence

import numpy as np

from t2t_flax.cli import arguments
from t2t_flax.errors import OK, UserError, require
from t2t_flax.extensions.scaling import compute_optimal, picture
from t2t_flax.extensions.scaling.intervals import Interval
from t2t_flax.extensions.scaling.law_fit import DRAWS, LawFit, fit_law
from t2t_flax.extensions.scaling.laws import LAWS
from t2t_flax.extensions.scaling.points import Point, RunPoint, group, read_runs
from t2t_flax.extensions.shared.picture import check_picture

ISO_FLOP = "iso_flop"
"""Search for the best size for a budget of FLOPs, beside the law `size_data`."""


def run(argv: list[str]) -> int:
    """Return exit code 0 when the law is fitted."""
    forms = "\n".join(f"  {law.name:10} {law.formula}" for law in LAWS.values())
    parser = arguments.parser(
        "fit_scaling",
        "Fits a law of the validation loss to runs of different sizes or data, with 95 % intervals"
        " by bootstrap, and predicts\nthe loss of further ones. Runs that differ in their seeds are"
        " one point.",
        epilog=(
            "Laws (N: parameters without embeddings, N_e and N_d those of encoder and decoder; D:"
            f" target tokens):\n{forms}\n  iso_flop   N_opt = k FLOPs^a, by parabolas through the"
            " losses of runs of equal FLOPs"
        ),
    )
    parser.add_argument(
        "workdirs",
        nargs="+",
        metavar="WORKDIR",
        help="of runs, or of sweeps, whose trials are taken",
    )
    parser.add_argument(
        "--law", default="size", choices=(*LAWS, ISO_FLOP), help="what to fit (default: size)"
    )
    held = (
        "predict the N largest points (by the first input) instead of fitting to them, and show"
        " what they have"
    )
    parser.add_argument("--hold-out", type=arguments.count(), default=0, metavar="N", help=held)
    predict = (
        "inputs of the law, separated by commas, at which the loss is predicted: 1e8, or 4e7,6e7"
    )
    parser.add_argument("--predict", action="append", default=[], metavar="X", help=predict)
    parser.add_argument(
        "--picture", metavar="FILE", help="also draw a .png, .pdf or .svg; needs matplotlib"
    )
    args, overrides = arguments.parse(parser, argv)
    require("scipy", "scaling", "fit_scaling")
    if overrides:
        raise UserError("fit_scaling reads finished runs: leave out --config.KEY=VALUE.")
    if args.picture:
        check_picture("--picture", args.picture)
    if args.law == ISO_FLOP:
        if args.hold_out or args.predict or args.picture:
            raise UserError(
                f"--law={args.law} has no --hold-out, --predict or --picture: leave them out."
            )
        print(_optimum(args.workdirs))
        return OK
    law = LAWS[args.law]
    points = group(_runs(args.workdirs), law.inputs)
    if args.hold_out >= len(points):
        raise UserError(f"--hold-out={args.hold_out} leaves no point of {len(points)} to fit to.")
    at = len(points) - args.hold_out
    fitted, held_out = points[:at], points[at:]
    further = [point.inputs for point in held_out] + [
        _inputs(text, law.inputs) for text in args.predict
    ]
    losses = [math.exp(point.log_loss) for point in fitted]
    found = fit_law(law, [point.inputs for point in fitted], losses, further)
    measured = [math.exp(point.log_loss) for point in held_out] + [None] * len(args.predict)
    print(_text(found, fitted, further, measured))
    if args.picture:
        picture.draw(found, args.picture, further, measured)
        print(f"picture: {args.picture}")
    return OK


def _runs(workdirs: Sequence[str]) -> list[RunPoint]:
    """Return the runs to fit to; name the runs that are left out.

    Raises UserError if none is left.
    """
    runs, left_out = read_runs(workdirs)
    if left_out:
        print(f"left out, not complete: {', '.join(left_out)}")
    if not runs:
        raise UserError(f"{', '.join(workdirs)}: no run is complete.")
    tokenizers = {run.tokenizer: run.name for run in runs}
    if len(tokenizers) > 1:
        print(
            f"losses per token mean little here: {' and '.join(tokenizers.values())} have different"
            " tokenizers"
        )
    return runs


def _inputs(text: str, names: Sequence[str]) -> tuple[float, ...]:
    """Return the inputs of --predict. Raises UserError."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) != len(names) or not all(0 < value < math.inf for value in values):
        raise UserError(
            f"--predict={text}: expected a number above 0 for each of {', '.join(names)}, separated"
            " by commas."
        )
    return values


def _text(
    found: LawFit,
    points: Sequence[Point],
    further: Sequence[tuple[float, ...]],
    measured: Sequence[float | None],
) -> str:
    """Return the points, the parameters and the predictions as a table."""
    law, runs = found.law, sum(len(point.runs) for point in points)
    centre = ", ".join(
        f"{name} / {value:.4g}" for name, value in zip(law.inputs, found.centre, strict=True)
    )
    lines = [f"{law.formula}, fitted to {len(points)} points ({runs} runs), of {centre}", ""]
    for point, loss, fit in zip(points, found.loss, found.predict(found.inputs), strict=True):
        lines.append(
            f"  {_shown(law.inputs, point.inputs)}  loss {loss:.4f}  law {fit:.4f}  runs"
            f" {len(point.runs)}"
        )
    lines += ["", *(f"  {name:6} {_interval(value)}" for name, value in found.parameters.items())]
    if law.name == "size_data":
        alpha, beta = found.parameters["alpha"].value, found.parameters["beta"].value
        lines.append(f"  N_opt = k FLOPs^{beta / (alpha + beta):.3f}")
    lines.append(f"  a point is {100 * found.spread:.2g} % off the law (standard deviation)")
    misfit = misfit_p(found, points)
    if misfit < 0.05:
        lines.append(
            f"  The points are off the law by more than their seeds explain (p = {misfit:.2g}): it"
            " may not hold beyond them."
        )
    if further:
        lines.append("")
    for inputs, loss, truth in zip(further, found.losses, measured, strict=True):
        was = (
            ""
            if truth is None
            else (
                f"  measured {truth:.4f},"
                f" {'inside' if loss.low <= truth <= loss.high else 'OUTSIDE'}"
            )
        )
        lines.append(f"  {_shown(law.inputs, inputs)}  predicted {_interval(loss)}{was}")
    return "\n".join(lines)


def misfit_p(found: LawFit, points: Sequence[Point]) -> float:
    """Return the p-value of an F test: how likely points are this far off the law.

    The expected deviation comes from the spread of their seeds. 1 where no point has several seeds.
    """
    from scipy import stats

    several = [np.log([run.loss for run in point.runs]) for point in points if len(point.runs) > 1]
    freedom, of_law = (
        sum(len(losses) - 1 for losses in several),
        len(points) - len(found.law.parameters),
    )
    if not freedom:
        return 1.0
    of_seeds = sum(float(((losses - losses.mean()) ** 2).sum()) for losses in several) / freedom
    seeds = len(points) / sum(1 / len(point.runs) for point in points)
    return float(stats.f.sf(found.spread**2 * seeds / max(of_seeds, 1e-300), of_law, freedom))


def _shown(names: Sequence[str], inputs: Sequence[float]) -> str:
    return "  ".join(f"{name} {value:>10.4g}" for name, value in zip(names, inputs, strict=True))


def _interval(value: Interval) -> str:
    if math.isnan(value.low):
        return f"{value.value:.4g} (no interval)"
    return f"{value.value:.4g} [{value.low:.4g}, {value.high:.4g}]"


def _optimum(workdirs: Sequence[str]) -> str:
    optimum = compute_optimal.iso_flop(group(_runs(workdirs), ("parameters", "FLOPs")), draws=DRAWS)
    lines = [
        f"  FLOPs {flops:.3e}  N_opt {size:.4g}  (tokens about {flops / 6 / size:.3g})"
        for flops, size in optimum.best
    ]
    return "\n".join([*lines, f"  N_opt = k FLOPs^a, a = {_interval(optimum.exponent)}"])
