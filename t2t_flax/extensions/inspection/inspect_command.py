"""`inspect`: hidden states of a trained model, and a page on its training.

The page shows statistics layer by layer.
"""

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from t2t_flax.cli import arguments, lines
from t2t_flax.cli.lines import Line, Note, paired
from t2t_flax.errors import UserError
from t2t_flax.files import atomic_write, is_remote
from t2t_flax.registry import LINES

if TYPE_CHECKING:
    from t2t_flax.evaluation.restore import TrainedModel


def window_size(loaded: "TrainedModel") -> int:
    """Return how many lines' hidden states are held at once."""
    return 8 * loaded.config.decode.batch_size


def run(argv: list[str]) -> int:
    """Return exit code 0 when the file is written."""
    parser = arguments.parser(
        "inspect",
        "Writes the hidden states of layers for lines of text as .npz: NAME of a layer: float32"
        " [tokens of all\nlines, d_model]; source_tokens, and target_tokens with --target: strings"
        " [tokens]; source_offsets and\ntarget_offsets [lines + 1]: the rows of line i are"
        " offsets[i] to offsets[i + 1]. A line that cannot be\nread (an empty side, too many"
        " tokens) has none, and is named at the end. Layers are counted from 0;\n`embeddings` is"
        " the input of the first one. Row t of the decoder predicts target token t.\nWith --html"
        " instead: a page of the statistics that a run with inspection.layers_every has logged.",
        epilog=(
            "Examples:\n  python -m t2t_flax inspect --workdir=runs/toy"
            " --layers=encoder/1,decoder/0 --input=test.en \\\n      --target=test.de"
            " --output=states.npz\n  python -m t2t_flax inspect --workdir=runs/toy"
            " --html=layers.html"
        ),
    )
    arguments.add_workdir(parser)
    arguments.add_checkpoint(parser)
    arguments.add_flags(parser, LINES)
    parser.add_argument(
        "--layers", metavar="NAMES", help="such as encoder/2,decoder/0 or encoder/embeddings"
    )
    parser.add_argument(
        "--input", metavar="FILE", help="source lines, a file or a pipe; - = standard input"
    )
    parser.add_argument(
        "--target", metavar="FILE", help="targets that the decoder reads, line by line"
    )
    parser.add_argument("--output", metavar="FILE.npz", help="file for the arrays")
    parser.add_argument(
        "--html", metavar="FILE", help="write a page of a run's statistics, without its model"
    )
    args, overrides = arguments.parse(parser, argv)
    if args.html is not None:
        return _write_page(args, overrides)
    if missing := [flag for flag in ("layers", "input", "output") if getattr(args, flag) is None]:
        raise UserError(
            f"--{missing[0]} is missing: give --layers, --input and --output, or --html=FILE."
        )
    if is_remote(args.output) or lines.is_stream(args.output):
        raise UserError(f"--output={args.output}: name a file on a local disk.")
    arguments.check_output("--output", args.output)
    lines.check_read_once(args.input, args.target)
    targets = None if args.target is None else lines.iterate_lines(args.target)
    pairs = paired(
        lines.iterate_lines(args.input),
        targets,
        (args.input, args.target),
        "line i of --target goes with line i",
    )
    loaded = arguments.load_run(args, overrides)
    from t2t_flax.extensions.inspection.hidden_states import States, hidden_states, layers_of, save

    model = loaded.config.model
    layers, found = layers_of(args.layers, model), list[States | None]()
    source = arguments.Changes(loaded, arguments.given_flags(args)).source

    def answer(window: list[Line], progress: Callable[[int, int], None]) -> tuple[str, list[Note]]:
        notes, texts = [], [(source(line.text), line.beside) for line in window]
        for line, states in zip(
            window, hidden_states(loaded, layers, texts, progress), strict=True
        ):
            if isinstance(states, UserError):
                notes.append(Note("have no states", line.number, str(states).rstrip(".")))
            found.append(None if isinstance(states, UserError) else states)
        return "", notes

    lines.answer_windows(
        "inspected", answer, lines.windows(pairs, window_size(loaded)), lambda *_: None
    )
    if not found:
        raise UserError(f"{args.input} has no lines.")
    save(args.output, layers, found, model.d_model, targets=targets is not None)
    return 0


def _write_page(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    others = ("layers", "input", "target", "output", "step", "average", "best")
    given = [f"--{flag}" for flag in others if getattr(args, flag)]
    if given := [*given, *arguments.given_flags(args), *(f"--config.{name}" for name in overrides)]:
        raise UserError(
            f"--html shows the statistics of a run, and {given[0]} is of hidden states: give one of"
            " them."
        )
    arguments.check_output("--html", args.html)
    from t2t_flax.extensions.inspection.layers_page import layers_page

    atomic_write(args.html, layers_page(os.fspath(args.workdir)))
    return 0
