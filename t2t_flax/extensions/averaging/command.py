"""`average`: write the mean of checkpoints as a new workdir."""

from t2t_flax.cli import arguments
from t2t_flax.errors import UserError
from t2t_flax.process_setup import prepare_process


def run(argv: list[str]) -> int:
    """Return exit code 0 when the new workdir is written."""
    parser = arguments.parser(
        "average",
        "Writes the mean of checkpoints (6.1) to a new folder that evaluate, translate, score,"
        " attend and\nfinetuning.init_from accept like a run's. (evaluate --average=N does the same"
        " without writing a folder.)",
        epilog=(
            "Examples:\n  python -m t2t_flax average --workdir=runs/toy --average=5"
            " --output=runs/toy-mean\n  python -m t2t_flax average --workdir=runs/toy --step=500"
            " --step=1000 --output=runs/toy-mean\n  python -m t2t_flax average --workdir=runs/a"
            " --workdir=runs/b --average=1 --output=runs/mean\n  python -m t2t_flax average"
            " --workdir=runs/toy --best --output=runs/toy-best"
        ),
    )
    parser.add_argument(
        "--workdir",
        required=True,
        action="append",
        metavar="DIR",
        help="folder of a run; may be given several times",
    )
    parser.add_argument(
        "--step",
        type=arguments.count(),
        action="append",
        metavar="N",
        help="checkpoint of update N (default: the newest); may be given several times",
    )
    parser.add_argument(
        "--average",
        type=arguments.count(),
        default=0,
        metavar="N",
        help="the last N regular checkpoints up to --step (6.1), without those of a stop or an"
        " evaluation",
    )
    parser.add_argument(
        "--best", action="store_true", help="the checkpoint with the best eval.metric"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to create")
    args, overrides = arguments.parse(parser, argv)
    steps = args.step or []
    if not (steps or args.average or args.best) or (args.average and len(steps) > 1):
        raise UserError(
            "say which checkpoints of each run: --average=N (the last N, up to one --step),"
            " --step=A --step=B ..., or --best."
        )

    arguments.check_output("--output", args.output, folder=True)
    from t2t_flax.evaluation.restore import stored_config
    from t2t_flax.extensions.averaging.average import average

    prepare_process(stored_config(args.workdir[0], overrides))
    parts = average(
        args.workdir,
        args.output,
        last=args.average,
        steps=steps,
        best=args.best,
        overrides=overrides,
    )
    print(
        f"{args.output}: mean of " + ", ".join(f"{workdir} step {step}" for workdir, step in parts)
    )
    return 0
