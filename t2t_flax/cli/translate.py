"""`translate`: lines in, lines out, always as many lines."""

import dataclasses
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from t2t_flax.cli import arguments
from t2t_flax.cli.line_windows import arrives_slowly, arriving_windows, full_windows, paired
from t2t_flax.cli.resumable_output import ResumableOutput, StreamOutput, is_stream
from t2t_flax.errors import OK, STOPPED, UserError

if TYPE_CHECKING:
    from t2t_flax.decoding.translator import Translation
    from t2t_flax.evaluation.restore import Loaded

_WINDOW_BATCHES = 128
"""Lines are read, sorted by length and translated in windows of this many batches, ..."""
_WINDOW_LINES = 2**14
"""... but of at least 8 batches and otherwise of at most this many lines."""
_PROGRESS_SECONDS = 10.0


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
        "  ... --config.decode.strategy=sample --config.decode.top_p=0.9 --config.decode.seed=1",
    )
    arguments.add_workdir(parser)
    arguments.add_checkpoint(parser)
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
                settings = _settings(loaded, args.scores)
                output = ResumableOutput(args.output, settings, resume=args.resume)
            live = is_stream(args.output) and arrives_slowly(args.input)
            _translate(loaded, lines, prefixes, output, args, signals, live=live)
    except _Signalled as signalled:
        print(f"t2t_flax translate: stopped by {signalled}.{_how_to_go_on(output)}", file=sys.stderr)
        return STOPPED if isinstance(output, ResumableOutput) else 128 + signalled.number
    except UserError as error:
        raise UserError(f"{error}{_how_to_go_on(output)}") from None
    return OK


def _translate(
    loaded: "Loaded",
    lines: Iterator[str],
    prefixes: Iterator[str] | None,
    output: StreamOutput | ResumableOutput,
    args: Any,
    signals: "_Signals",
    *,
    live: bool,
) -> None:
    from t2t_flax.distributed import mesh as mesh_lib
    from t2t_flax.tasks import task_of

    task, decode = task_of(loaded.config), loaded.config.decode
    rows = decode.batch_size * mesh_lib.batch_shards(loaded.mesh)
    size = rows * min(_WINDOW_BATCHES, max(8, _WINDOW_LINES // rows))
    warnings, progress = _Warnings(), _Progress()

    def after_batch(done: int, total: int) -> None:
        signals.check()
        progress.update(done)

    with output:
        output.skip(lines, prefixes)
        number = output.done
        windows = signals.waiting((arriving_windows if live else full_windows)(lines, size))
        names = ("standard input" if args.input == "-" else args.input, args.prefix)
        for window, starts in paired(windows, prefixes, names, start=number):
            translations = loaded.translate(window, prefixes=starts, first_line=number, progress=after_batch)
            text = []
            for i, (source, translation) in enumerate(zip(window, translations, strict=True), number):
                answers = [task.postprocess(source, h.text) for h in translation.hypotheses]
                scores = [h.score for h in translation.hypotheses]
                text += _format(i, answers, scores, decode.n_best, args.scores)
                warnings.add(i + 1, translation)
            output.append(window, starts, "".join(line + "\n" for line in text))
            number += len(window)
            progress.end_window(len(window))
        output.finish()
    warnings.show()


def _settings(loaded: "Loaded", with_scores: bool) -> dict[str, Any]:
    """What the translations depend on. Batch sizes and the mesh may change when resuming."""
    from t2t_flax.training.checksums import checksums

    decode = dataclasses.asdict(loaded.config.decode)
    del decode["batch_size"]
    return {f"decode.{key}": value for key, value in decode.items()} | {
        "--scores": with_scores,
        "checkpoints": list(loaded.steps),
        "parameters": sum(checksums(loaded.params).values()),
        "tokenizers": loaded.tokenizers.digest,
    }


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

    def waiting(self, windows: Iterator[list[str]]) -> Iterator[list[str]]:
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


def _format(number: int, answers: list[str], scores: list[float], n_best: int, with_scores: bool) -> list[str]:
    if n_best == 1:
        return [f"{answers[0]}\t{scores[0]:.4f}" if with_scores else answers[0]]
    ends = [f" ||| {score:.4f}" if with_scores else "" for score in scores]
    return [f"{number} ||| {answer}{end}" for answer, end in zip(answers, ends, strict=True)]


class _Progress:
    """A line on standard error every ten seconds."""

    def __init__(self):
        self._began = self._last = time.monotonic()
        self._before = 0

    def update(self, done: int) -> None:
        now = time.monotonic()
        if now - self._last >= _PROGRESS_SECONDS:
            self._last, lines = now, self._before + done
            rate = lines / (now - self._began)
            print(f"translated {lines:,} lines, {rate:.1f} lines/s", file=sys.stderr, flush=True)

    def end_window(self, lines: int) -> None:
        self._before += lines


class _Warnings:
    """Counts of truncated lines, with the first of them."""

    def __init__(self):
        self._lines = 0
        self._counts: dict[str, tuple[int, list[int]]] = {
            "truncated to config.decode.max_source_length": (0, []),
            "ended by the length limit (config.decode.max_length_offset)": (0, []),
        }

    def add(self, number: int, translation: "Translation") -> None:
        self._lines += 1
        for event, happened in zip(self._counts, (translation.source_cut, translation.hit_cap), strict=True):
            if happened:
                count, first = self._counts[event]
                self._counts[event] = (count + 1, first if len(first) == 10 else [*first, number])

    def show(self) -> None:
        for event, (count, first) in self._counts.items():
            if count:
                shown = ", ".join(map(str, first)) + (", ..." if count > len(first) else "")
                print(f"warning: {count} of {self._lines} lines {event}: line {shown}", file=sys.stderr)
