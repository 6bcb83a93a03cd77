"""`translate`: lines in, lines out, always as many lines."""

import signal
import sys
from collections.abc import Iterator

from t2t_flax.cli import arguments
from t2t_flax.cli.line_windows import Line, arrives_slowly, arriving_windows, full_windows, paired
from t2t_flax.cli.resumable_output import ResumableOutput, StreamOutput, is_stream
from t2t_flax.cli.translation_loop import output_settings, translate_windows, window_size
from t2t_flax.errors import OK, STOPPED, UserError


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
    parser.add_argument(
        "--output",
        default="-",
        metavar="FILE",
        help="written as FILE.partial, renamed at the end; default: standard output",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on after the lines that FILE.partial of --output=FILE already holds",
    )
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
    if args.resume and is_stream(args.output):
        raise UserError("--resume needs --output=FILE: standard output cannot be resumed.")
    arguments.check_output("--output", args.output)
    from t2t_flax.distributed.initialize import place_among_several

    if place_among_several():
        from t2t_flax.cli.shared_translation import run_shared

        return run_shared(args, overrides)
    output = None
    try:
        with _Signals() as signals:
            lines = arguments.iterate_lines(args.input)
            prefixes = arguments.iterate_lines(args.prefix) if args.prefix else None
            loaded = arguments.load_run(args, overrides)
            signals.check()
            if is_stream(args.output):
                output = StreamOutput(args.output)
            else:
                output = ResumableOutput(args.output, output_settings(loaded, args.scores), resume=args.resume)
            pairs = paired(lines, prefixes, ("standard input" if args.input == "-" else args.input, args.prefix))
            live = is_stream(args.output) and arrives_slowly(args.input)
            with output:
                output.skip(pairs)
                windows = (arriving_windows if live else full_windows)(pairs, window_size(loaded))
                windows = signals.waiting(windows)
                translate_windows(loaded, windows, output, scores=args.scores, after_batch=signals.check)
                output.finish()
    except _Signalled as signalled:
        print(f"t2t_flax translate: stopped by {signalled}.{_how_to_go_on(output)}", file=sys.stderr)
        return STOPPED if isinstance(output, ResumableOutput) else 128 + signalled.number
    except UserError as error:
        raise UserError(f"{error}{_how_to_go_on(output)}") from None
    return OK


class _Signalled(BaseException):
    """SIGINT or SIGTERM. Not an Exception, so that nothing between handles it."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


class _Signals:
    """Raises `_Signalled` for SIGINT and SIGTERM: at once while waiting for input and at a second
    signal, else at the next `check`, because JAX loses an exception that is raised in its callbacks.
    """

    def __init__(self):
        self._number, self._waiting = 0, False

    def __enter__(self) -> "_Signals":
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._handlers = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        first, self._number = not self._number, number
        if self._waiting or not first:
            raise _Signalled(number)

    def check(self) -> None:
        if self._number:
            raise _Signalled(self._number)

    def waiting(self, windows: Iterator[list[Line]]) -> Iterator[list[Line]]:
        """The windows; a signal that comes while one is awaited is raised at once."""
        while True:
            self._waiting = True
            try:
                self.check()
                window = next(windows, None)
            finally:
                self._waiting = False
            if window is None:
                return
            yield window


def _how_to_go_on(output: StreamOutput | ResumableOutput | None) -> str:
    if not isinstance(output, ResumableOutput) or not output.done:
        return ""
    return f" {output.partial} holds the output of {output.done} lines: the same command with --resume goes on."
