"""`translate`: lines in, lines out, always as many lines."""

import argparse

from t2t_flax.cli import arguments
from t2t_flax.cli.line_loop import answer_windows, to_stderr
from t2t_flax.cli.line_windows import arrives_slowly, arriving_windows, full_windows, paired
from t2t_flax.cli.stop_signals import Signalled, StopSignals
from t2t_flax.cli.translating import Translating
from t2t_flax.errors import OK, UserError


def run(argv: list[str]) -> int:
    """Exit code 0 when every line was translated. After a signal 128 plus its number."""
    parser = arguments.parser(
        "translate",
        "Translates standard input (or --input) line by line with a trained run. Translations are\n"
        "written in the order of the input while it is read; a line that arrives through a pipe or is\n"
        "typed is answered at once.",
        epilog="Examples:\n"
        "  cat lines.txt | python -m t2t_flax translate --workdir=runs/toy\n"
        "  ... --n-best=4 --scores            N ||| translation ||| score, best first\n"
        "  ... --prefix=starts.txt            each translation begins with the line of the same number\n"
        "  ... --config.decode.strategy=sample --config.decode.top_p=0.9 --config.decode.seed=1",
    )
    parser.add_argument("--input", default="-", metavar="FILE", help="default: standard input")
    parser.add_argument(
        "--output", default="-", metavar="FILE", help="gets its name when it is whole; default: standard output"
    )
    add_translation_options(parser)
    args, overrides = arguments.parse(parser, argv)
    check_translation_options(args, overrides)
    arguments.check_output("--output", args.output)
    lines = arguments.iterate_lines(args.input)
    prefixes = arguments.iterate_lines(args.prefix) if args.prefix else None
    pairs = paired(lines, prefixes, ("standard input" if args.input == "-" else args.input, args.prefix))
    try:
        with StopSignals() as signals:
            translating = Translating(arguments.load_run(args, overrides), scores=args.scores)
            signals.check()
            live = arguments.is_stream(args.output) and arrives_slowly(args.input)
            windows = signals.waiting((arriving_windows if live else full_windows)(pairs, translating.window))
            with arguments.open_output(args.output) as write:
                answer_windows(translating, windows, lambda _, text: write(text), after_batch=signals.check)
    except Signalled as signalled:
        to_stderr(f"t2t_flax translate: stopped by {signalled}.")
        return 128 + signalled.number
    return OK


def add_translation_options(parser: argparse.ArgumentParser) -> None:
    """The run, its checkpoint, and what its translations look like."""
    arguments.add_workdir(parser)
    arguments.add_checkpoint(parser)
    arguments.add_start(parser)
    parser.add_argument("--prefix", metavar="FILE", help="forced beginnings, a line for each input line")
    parser.add_argument(
        "--n-best",
        type=arguments.count(1),
        metavar="N",
        help="translations of each line (default: the run's decode.n_best)",
    )
    parser.add_argument("--scores", action="store_true", help="print scores beside the translations")


def check_translation_options(args: argparse.Namespace, overrides: dict[str, str]) -> None:
    """Makes --n-best an override. Raises UserError for two different ones, and for one pipe as two inputs."""
    if args.n_best is not None:
        if overrides.setdefault("decode.n_best", str(args.n_best)) != str(args.n_best):
            raise UserError(
                f"--n-best={args.n_best} and --config.decode.n_best={overrides['decode.n_best']} differ: "
                "give one of them."
            )
    arguments.check_read_once(args.input, args.prefix)
