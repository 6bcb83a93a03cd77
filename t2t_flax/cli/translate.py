"""`translate`: lines in, lines out, always as many lines."""

from t2t_flax.cli import arguments
from t2t_flax.cli.line_loop import run_lines
from t2t_flax.cli.line_windows import paired
from t2t_flax.cli.translating import Translating
from t2t_flax.errors import UserError


def run(argv: list[str]) -> int:
    """Exit code 0 when every line was translated. After a signal: 75 where --resume can go on, else
    128 plus the signal's number.
    """
    parser = arguments.parser(
        "translate",
        "Translates standard input (or --input) line by line with a trained run. Translations are\n"
        "written in the order of the input while it is read; a line that arrives through a pipe or is\n"
        "typed is answered at once.",
        epilog="Examples:\n"
        "  cat lines.txt | python -m t2t_flax translate --workdir=runs/toy\n"
        "  ... --n-best=4 --scores            N ||| translation ||| score, best first\n"
        "  ... --prefix=starts.txt            each translation begins with the line of the same number\n"
        "  ... --input=big.txt --output=big.de --resume      goes on where the same command stopped\n"
        "  launch/local_pod.sh 2 -- ... --input=big.txt --output=big.de     several processes share the lines\n"
        "  ... --config.decode.strategy=sample --config.decode.top_p=0.9 --config.decode.seed=1",
    )
    arguments.add_workdir(parser)
    arguments.add_checkpoint(parser)
    arguments.add_target_language(parser)
    parser.add_argument("--input", default="-", metavar="FILE", help="default: standard input")
    arguments.add_resumable_output(parser)
    parser.add_argument("--prefix", metavar="FILE", help="forced beginnings, a line for each input line")
    parser.add_argument(
        "--n-best",
        type=arguments.count(1),
        metavar="N",
        help="translations of each line (default: the run's decode.n_best)",
    )
    parser.add_argument("--scores", action="store_true", help="print scores beside the translations")
    args, overrides = arguments.parse(parser, argv)
    if args.n_best is not None:
        if overrides.setdefault("decode.n_best", str(args.n_best)) != str(args.n_best):
            raise UserError(
                f"--n-best={args.n_best} and --config.decode.n_best={overrides['decode.n_best']} differ: "
                "give one of them."
            )
    arguments.check_read_once(args.input, args.prefix)
    arguments.check_resumable_output(args)
    from t2t_flax.distributed.initialize import place_among_several

    if place_among_several():
        from t2t_flax.cli.shared_translation import run_shared

        return run_shared(args, overrides)
    lines = arguments.iterate_lines(args.input)
    prefixes = arguments.iterate_lines(args.prefix) if args.prefix else None
    pairs = paired(lines, prefixes, ("standard input" if args.input == "-" else args.input, args.prefix))

    def start() -> Translating:
        return Translating(arguments.load_run(args, overrides), scores=args.scores)

    return run_lines("translate", pairs, start, source=args.input, output=args.output, resume=args.resume)
