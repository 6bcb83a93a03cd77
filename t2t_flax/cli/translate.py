"""`translate`: lines in, lines out, always as many lines."""

import argparse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from t2t_flax.cli import arguments
from t2t_flax.cli.lines import (
    FAILED,
    Answer,
    Line,
    Note,
    Signalled,
    answer_windows,
    arrives_slowly,
    check_read_once,
    check_text,
    iterate_lines,
    open_output,
    paired,
    stop_signals,
    to_stderr,
    window_size,
    windows,
)
from t2t_flax.errors import UserError, first_line
from t2t_flax.registry import LINES, OUTPUTS

if TYPE_CHECKING:
    from t2t_flax.decoding.translator import Translation
    from t2t_flax.evaluation.restore import TrainedModel

OF_A_LINE = (UserError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError)
"""Errors that a line can cause, also in libraries.

Others, such as a full memory, end the command.
"""
_CUT = "truncated to config.decode.max_source_length"
_NONE = "left empty, as no output keeps all rules on tokens"
_ENDED = "ended by the length limit (config.decode.max_length_offset)"


def run(argv: list[str]) -> int:
    """Return 0 when every line was translated, 2 if some failed.

    After a signal return 128 plus its number.
    """
    parser = arguments.parser(
        "translate",
        "Translates standard input (or --input) line by line with a trained run. Translations are"
        " written in the order of\nthe input while it is read; a line that arrives through a pipe"
        " or is typed is answered at once.",
        epilog=(
            "Examples:\n  cat lines.txt | python -m t2t_flax translate --workdir=runs/toy\n  ..."
            " --n-best=4 --scores            N ||| translation ||| score, best first\n  ..."
            " --prefix=starts.txt            each translation begins with the line of the same"
            " number\n  ... --config.decode.strategy=sample --config.decode.top_p=0.9"
            " --config.decode.seed=1"
        ),
    )
    parser.add_argument("--input", default="-", metavar="FILE", help="default: standard input")
    parser.add_argument(
        "--output",
        default="-",
        metavar="FILE",
        help="gets its name when it is whole; default: standard output",
    )
    add_translation_options(parser)
    args, overrides = arguments.parse(parser, argv)
    arguments.check_output("--output", args.output)
    pairs = read_input(args, overrides)
    try:
        with stop_signals() as check:
            loaded = arguments.load_run(args, overrides).for_decoding()
            check()
            arriving = windows(
                pairs, window_size(loaded), live=arrives_slowly(args.input), check=check
            )
            with open_output(args.output) as write:
                answer = translating(loaded, scores=args.scores, flags=arguments.given_flags(args))
                code = answer_windows(
                    "translated", answer, arriving, lambda _, text, failed: write(text), check=check
                )
    except Signalled as signalled:
        to_stderr(f"t2t_flax translate: stopped by {signalled}.")
        return 128 + signalled.number
    return code


def add_translation_options(parser: argparse.ArgumentParser) -> None:
    """Add flags for the run, its checkpoint, and the format of its translations."""
    arguments.add_workdir(parser, several=True)
    arguments.add_checkpoint(parser)
    arguments.add_flags(parser, LINES, OUTPUTS)
    parser.add_argument(
        "--prefix", metavar="FILE", help="forced beginnings, a line for each input line"
    )
    parser.add_argument(
        "--n-best",
        type=arguments.count(1),
        metavar="N",
        help="translations of each line (default: the run's decode.n_best)",
    )
    parser.add_argument(
        "--scores", action="store_true", help="print scores beside the translations"
    )


def read_input(args: argparse.Namespace, overrides: dict[str, str]) -> Iterator[Line]:
    """Yield the lines of --input, with the lines of --prefix beside them.

    Makes --n-best an override. Raises UserError for two different values, for a file that cannot be
    read, and for one pipe as two inputs.
    """
    if args.n_best and overrides.setdefault("decode.n_best", str(args.n_best)) != str(args.n_best):
        raise UserError(
            f"--n-best and --config.decode.n_best={overrides['decode.n_best']} differ: give one of"
            " them."
        )
    check_read_once(args.input, args.prefix)
    prefixes = iterate_lines(args.prefix, checked=False) if args.prefix else None
    names = "standard input" if args.input == "-" else args.input, args.prefix
    return paired(iterate_lines(args.input, checked=False), prefixes, names)


def translating(
    loaded: "TrainedModel",
    *,
    scores: bool,
    flags: dict[str, str],
    say: Callable[[str], None] = to_stderr,
) -> Answer:
    """Return a function that translates lines, see `Answer`.

    Each line gets n_best translations. An empty line has an empty translation. A source that is too
    long is truncated and reported. A line that cannot be translated is left empty and noted as
    `FAILED`. If the first window has several lines and all lines with text fail, the error is
    raised: no single line causes it.

    Args:
        scores: whether scores are printed beside the translations.
        flags: see `arguments.Changes`.
        say: gets messages on the decoder, unless it is JAX's, and on a faster precision.
    """
    from t2t_flax.decoding.batches import read_lines
    from t2t_flax.tasks import task_of
    from t2t_flax.training import precision

    task, n_best = task_of(loaded.config), loaded.config.decode.n_best
    change = arguments.Changes(loaded, flags)
    loaded = change.model
    decoder = loaded.decoder  # raises errors here that no line causes
    if loaded.config.decode.engine != "jax":
        say(f"decoding with {decoder}")
    if faster := precision.advice(loaded.config, decoding=True):
        say(faster)

    def read(line: Line) -> str:
        check_text(line.text)
        check_text(line.beside or "")
        return change.source(line.text)

    def answer(window: list[Line], progress: Callable[[int, int], None]) -> tuple[str, list[Note]]:
        first = window[0].number
        errors: dict[int, Exception] = {}
        sources = _each(window, read, errors, "")

        def translate() -> list["Translation"]:
            starts = [line.beside or "" if line.number not in errors else "" for line in window]
            options: dict[str, Any] = dict(
                prefixes=None if window[0].beside is None else starts, first_line=first
            )
            return loaded.translate(sources, **options, progress=progress)

        try:
            translations = translate()
        except OF_A_LINE:
            _each(
                window,
                lambda line: loaded.check_line(sources[line.number - first], line.number),
                errors,
                None,
            )
            if not errors:
                raise
            sources = [
                "" if line.number in errors else text
                for line, text in zip(window, sources, strict=True)
            ]
            translations = translate()
        lines = ["" if line.number in errors else line.text for line in window]
        texts = [
            [task.postprocess(line, h.text) for h in t.hypotheses]
            for line, t in zip(lines, translations, strict=True)
        ]
        if make := change.answers:
            both = [
                read_lines(loaded.config, loaded.tokenizers, each, first)[0]
                for each in (lines, sources)
            ]
            rows = list(zip(window, *both, texts, strict=True))
            texts = _in_parts(
                rows, lambda rows: make(*list(zip(*rows, strict=True))[1:]), errors, [""] * n_best
            )
        notes = [
            Note(FAILED, number, first_line(error).removeprefix(f"line {number + 1}: "))
            for number, error in sorted(errors.items())
        ]
        with_text = {line.number for line in window if line.text.strip()}
        if errors and first == 0 and len(window) > 1 and errors.keys() >= with_text:
            error = errors[notes[0].number]
            raise (
                UserError(f"line {notes[0].number + 1}: {notes[0].more}")
                if isinstance(error, UserError)
                else error
            )
        out: list[str] = []
        for line, translation, answers in zip(window, translations, texts, strict=True):
            out += _format(
                line.number, answers, [h.score for h in translation.hypotheses], n_best, scores
            )
            notes += [Note(_CUT, line.number)] if translation.source_cut else []
            notes += [Note(_NONE, line.number)] if translation.is_none else []
            notes += [Note(_ENDED, line.number)] if translation.hit_cap else []
        return "".join(line + "\n" for line in out), notes

    return answer


def _each(
    window: list[Line], do: Callable[[Line], Any], errors: dict[int, Exception], failed: Any
) -> list[Any]:
    """Return a result for each line.

    A line with an error gets the result `failed`, and the error is added to `errors` by its number.
    """
    return _in_parts(
        [(line,) for line in window], lambda rows: [do(line) for (line,) in rows], errors, failed
    )


def _in_parts(
    rows: list[Any], do: Callable[[list[Any]], list[Any]], errors: dict[int, Exception], failed: Any
) -> list[Any]:
    """Return do(rows); after an error, retry halves to find each line that causes one.

    Args:
        rows: tuples that begin with a `Line`.
        errors: gets the errors by line number.
        failed: result for a line with an error.
    """
    try:
        return do(rows)
    except OF_A_LINE as error:
        if len(rows) == 1:
            errors[rows[0][0].number] = error
            return [failed]
    half = len(rows) // 2
    return _in_parts(rows[:half], do, errors, failed) + _in_parts(rows[half:], do, errors, failed)


def _format(
    number: int, answers: list[str], scores: list[float], n_best: int, with_scores: bool
) -> list[str]:
    if n_best == 1:
        return [f"{answers[0]}\t{scores[0]:.4f}" if with_scores else answers[0]]
    ends = [f" ||| {score:.4f}" if with_scores else "" for score in scores]
    return [f"{number} ||| {answer}{end}" for answer, end in zip(answers, ends, strict=True)]
