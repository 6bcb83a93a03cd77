"""`time_to_target`: scores of optimizers by the time that their trials take to a target."""

import dataclasses
import json
import math
from collections.abc import Sequence

from t2t_flax.cli import arguments
from t2t_flax.errors import OK, UserError
from t2t_flax.extensions.algoperf.studies import CLOCKS, Score, read_trials, scores


def run(argv: list[str]) -> int:
    """Exit code 0 when the table is printed."""
    parser = arguments.parser(
        "time_to_target",
        "Scores optimizers as AlgoPerf does: of each study the fastest trial to config.algoperf.target, and the median over\n"
        "the studies (config.algoperf.study). A trial that does not reach the target takes infinitely long.",
        epilog="Example:\n  python -m t2t_flax time_to_target sweeps/algoperf --by=updates",
    )
    parser.add_argument(
        "folders", nargs="+", metavar="FOLDER", help="workdir of a run, or folder of a sweep: its trials"
    )
    parser.add_argument(
        "--by",
        default="seconds",
        choices=CLOCKS,
        help="what is counted: seconds of training and compilation (default), updates, or target tokens",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    args, overrides = arguments.parse(parser, argv)
    if overrides:
        raise UserError("time_to_target reads runs: leave out --config.KEY=VALUE.")
    trials, left_out = read_trials(args.folders)
    found = scores(trials, args.by)
    metric, target = trials[0].goal
    if args.json:
        head = {"metric": metric, "target": target, "by": args.by}
        of_trials = [{name: value for name, value in vars(trial).items() if name != "goal"} for trial in trials]
        print(
            json.dumps(head | {"scores": list(map(_plain, found)), "trials": of_trials, "left_out": left_out}, indent=2)
        )
        return OK
    print(
        f"{args.by} to {metric} {target:g} of the validation set: the median over studies of the fastest trial of each\n"
    )
    print(_table(found))
    if len({tuple(score.studies) for score in found}) > 1:
        studies = "; ".join(f"{score.algorithm}: {', '.join(map(str, score.studies))}" for score in found)
        print(f"\nThe optimizers have trials of different studies ({studies}): compare scores over the same ones.")
    if unfinished := sum(score.unfinished for score in found):
        print(f"\n{unfinished} trials have not ended: what they have not reached so far counts as not reached.")
    if left_out:
        print(f"\nleft out, not started: {', '.join(left_out)}")
    return OK


def _plain(score: Score) -> dict:
    """A score in JSON, which has no infinity: null."""
    finite = lambda value: value if math.isfinite(value) else None  # noqa: E731
    values = dataclasses.asdict(score)
    return values | {
        "score": finite(score.score),
        "ratio": finite(score.ratio),
        "studies": {number: finite(time) for number, time in score.studies.items()},
    }


def _table(found: Sequence[Score]) -> str:
    shown = lambda value, form: form.format(value) if math.isfinite(value) else "-"  # noqa: E731
    rows = [("optimizer", "score", "ratio", "of each study", "reached", "test target")]
    rows += [
        (
            score.algorithm,
            shown(score.score, "{:,.0f}"),
            shown(score.ratio, "{:.2f}"),
            "  ".join(shown(time, "{:,.0f}") for time in score.studies.values()),
            f"{score.reached} of {score.trials}",
            "-" if score.test is None else f"{score.test} of {score.trials}",
        )
        for score in found
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
