"""`average`: the mean of checkpoints as a workdir of its own."""

import argparse

from t2t_flax.cli import arguments
from t2t_flax.errors import UserError
from t2t_flax.process_setup import prepare_process


def run(argv: list[str]) -> int:
    """Exit code 0 when the new workdir is written."""
    parser = arguments.parser(
        "average",
        "Writes the mean of checkpoints (6.1) to a new folder that evaluate, translate, score, attend and\n"
        "train.init_from take like a run's. (evaluate --average=N does the same without writing anything.)",
        epilog="Examples:\n"
        "  python -m t2t_flax average --workdir=runs/toy --last=5 --output=runs/toy-mean\n"
        "  python -m t2t_flax average --workdir=runs/toy --steps=500,1000 --output=runs/toy-mean\n"
        "  python -m t2t_flax average --workdir=runs/a --workdir=runs/b --last=1 --output=runs/mean\n"
        "  python -m t2t_flax average --workdir=runs/toy --best --output=runs/toy-best",
    )
    parser.add_argument(
        "--workdir", required=True, action="append", metavar="DIR", help="folder of a run; may be given several times"
    )
    parser.add_argument(
        "--last", type=arguments.count(1), default=0, metavar="N", help="the last N checkpoints of each"
    )
    parser.add_argument("--steps", metavar="A,B,...", help="these checkpoints of each instead")
    parser.add_argument("--best", action="store_true", help="the checkpoint of each with the best eval.metric instead")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to be made")
    args, overrides = arguments.parse(parser, argv)
    steps = _steps(args.steps) if args.steps else []
    if [bool(steps), bool(args.last), args.best].count(True) != 1:
        raise UserError("say which checkpoints: either --last=N with N of at least 1, or --steps=A,B,..., or --best")

    from t2t_flax.evaluation.checkpoint_average import average
    from t2t_flax.evaluation.restore import stored_config

    prepare_process(stored_config(args.workdir[0], overrides))
    taken = average(args.workdir, args.output, last=args.last, steps=steps, best=args.best, overrides=overrides)
    print(f"{args.output}: mean of " + ", ".join(f"{workdir} step {step}" for workdir, step in taken))
    return 0


def _steps(text: str) -> list[int]:
    try:
        return [arguments.count()(step) for step in text.split(",")]
    except argparse.ArgumentTypeError:
        raise UserError(f"--steps={text}: expected step numbers, as in --steps=500,1000.") from None
