"""`translate_file`: translate a file that takes hours.

It is resumed after a stop and shared by several processes.
"""

from typing import TYPE_CHECKING, Any

from t2t_flax.cli import arguments
from t2t_flax.cli.lines import Answer
from t2t_flax.cli.translate import add_translation_options, read_input, translating
from t2t_flax.distributed.coordination import place_among_several
from t2t_flax.extensions.bulk_translation.line_files import output_settings, run_lines
from t2t_flax.extensions.bulk_translation.resumable_output import add_resume, check_resumable_output

if TYPE_CHECKING:
    from t2t_flax.evaluation.restore import TrainedModel


def run(argv: list[str]) -> int:
    """Return exit code 0 when every line was translated, 2 if some cannot be.

    After a signal: 75 if --resume can go on, else 128 plus the signal's number.
    """
    parser = arguments.parser(
        "translate_file",
        "Translates a file line by line with a trained run, as `translate`. What is translated is"
        " kept in\nFILE.partial, from which --resume goes on after a stop. Several processes share"
        " the lines.",
        epilog=(
            "Examples:\n  python -m t2t_flax translate_file --workdir=runs/toy --input=big.en"
            " --output=big.de --resume\n  launch/local_pod.sh 2 -- python -m t2t_flax"
            " translate_file ...   two processes share the lines"
        ),
    )
    parser.add_argument("--input", required=True, metavar="FILE", help="lines to translate")
    parser.add_argument(
        "--output",
        required=True,
        metavar="FILE",
        help="written as FILE.partial, renamed at the end",
    )
    add_resume(parser)
    add_translation_options(parser)
    args, overrides = arguments.parse(parser, argv)
    check_resumable_output(args)
    if place_among_several():
        from t2t_flax.extensions.bulk_translation.shared_translation import run_shared

        return run_shared(args, overrides)
    pairs = read_input(args, overrides)

    def start() -> tuple["TrainedModel", Answer, dict[str, Any]]:
        loaded = arguments.load_run(args, overrides).for_decoding()
        flags = arguments.given_flags(args)
        answer = translating(loaded, scores=args.scores, flags=flags)
        return loaded, answer, output_settings(loaded, {"--scores": args.scores, **flags})

    files = dict(source=args.input, output=args.output)
    return run_lines("translate_file", "translated", pairs, start, **files, resume=args.resume)
