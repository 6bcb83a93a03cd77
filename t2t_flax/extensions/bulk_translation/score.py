"""`score`: compute the log-probability of given pairs by forced decoding."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from t2t_flax.cli import arguments, lines
from t2t_flax.cli.lines import Answer, Line, Note, paired
from t2t_flax.errors import UserError
from t2t_flax.extensions.bulk_translation.line_files import output_settings, run_lines
from t2t_flax.extensions.bulk_translation.resumable_output import add_resume, check_resumable_output
from t2t_flax.registry import LINES

if TYPE_CHECKING:
    from t2t_flax.evaluation.restore import TrainedModel
    from t2t_flax.evaluation.scoring import PairScore


def run(argv: list[str]) -> int:
    """Return exit code 0 when every pair has its line.

    Pairs without a score are named. After a signal it is the code of `translate_file`.
    """
    parser = arguments.parser(
        "score",
        "Scores pairs with a trained run: log-probability of the target given the source (nats, EOS"
        " included),\nnumber of target tokens, and their mean. One line for each pair, TAB between"
        " the three. A pair that\ncannot be scored (an empty side, too many tokens) has the line"
        " `nan 0 nan`, and is named at the end.",
        epilog=(
            "Examples:\n"
            "  python -m t2t_flax score --workdir=runs/toy --source=test.en --target=test.de\n"
            "  ... --tokens                       adds each target piece with its log-probability\n"
            "  ... --output=scores.tsv --resume   goes on where the same command stopped"
        ),
    )
    arguments.add_workdir(parser, several=True)
    arguments.add_checkpoint(parser)
    arguments.add_flags(parser, LINES)
    parser.add_argument(
        "--source",
        required=True,
        metavar="FILE",
        help="source lines, a file or a pipe; - = standard input",
    )
    parser.add_argument(
        "--target", required=True, metavar="FILE", help="their translations, line by line"
    )
    parser.add_argument(
        "--output",
        default="-",
        metavar="FILE",
        help="written as FILE.partial, renamed at the end; default: standard output",
    )
    add_resume(parser)
    parser.add_argument(
        "--tokens", action="store_true", help="also print the log-probability of each target token"
    )
    args, overrides = arguments.parse(parser, argv)
    lines.check_read_once(args.source, args.target)
    check_resumable_output(args)
    sources, targets = (
        lines.iterate_lines(name, checked=False) for name in (args.source, args.target)
    )
    expected = "line i of one must be the translation of line i of the other"
    pairs = paired(sources, targets, (args.source, args.target), expected)

    def start() -> tuple["TrainedModel", Answer, dict[str, Any]]:
        loaded = arguments.load_run(args, overrides)
        flags = arguments.given_flags(args)
        answer = scoring(loaded, tokens=args.tokens, flags=flags)
        return loaded, answer, output_settings(loaded, {"--tokens": args.tokens, **flags})

    return run_lines(
        "score", "scored", pairs, start, source=args.source, output=args.output, resume=args.resume
    )


def scoring(loaded: "TrainedModel", *, tokens: bool, flags: dict[str, str]) -> Answer:
    """Return a function that scores pairs, with one line for each pair.

    A pair that cannot be scored has a line, too, and is noted.

    Args:
        tokens: write each token's log-probability.
        flags: see `arguments.Changes`.
    """
    source = arguments.Changes(loaded, flags).source

    def answer(window: list[Line], progress: Callable[[int, int], None]) -> tuple[str, list[Note]]:
        results = score_each(
            loaded, [(source(line.text), line.beside or "") for line in window], progress
        )
        notes = [
            Note("not scored, their score is nan", line.number, str(result).rstrip("."))
            for line, result in zip(window, results, strict=True)
            if isinstance(result, UserError)
        ]
        return "".join(_format(result, tokens) + "\n" for result in results), notes

    return answer


def score_each(
    run: "TrainedModel",
    pairs: Sequence[tuple[str, str]],
    progress: Callable[[int, int], None] | None = None,
) -> "list[PairScore | UserError]":
    """Score like `TrainedModel.score`, with errors in place of some scores.

    A pair that cannot be scored has an error in its place. Raises UserError if every source lacks
    the language to write.
    """
    encoded: list[Any] = []
    texts = [source for source, _ in pairs if source.strip()]
    if texts and all(map(run.tokenizers.source.lacks_language, texts)):
        run.in_language(texts[0])
    for source, target in pairs:
        try:
            lines.check_text(source)
            lines.check_text(target)
            encoded.append(run.encode_pair(source, target))
        except UserError as error:
            encoded.append(error)
    scores = iter(
        run.score_pairs([ids for ids in encoded if not isinstance(ids, UserError)], progress)
    )
    return [ids if isinstance(ids, UserError) else next(scores) for ids in encoded]


def _format(score: "PairScore | UserError", tokens: bool) -> str:
    if isinstance(score, UserError):
        return "nan\t0\tnan" + ("\t" if tokens else "")
    line = f"{score.log_prob:.6f}\t{len(score.tokens)}\t{score.per_token:.6f}"
    if tokens:
        pairs = zip(score.tokens, score.token_log_probs, strict=True)
        line += "\t" + " ".join(f"{token}:{value:.6f}" for token, value in pairs)
    return line
