"""`translate`: lines in, lines out, always as many lines."""

import sys

from t2t_flax.cli import arguments
from t2t_flax.errors import UserError
from t2t_flax.tasks import task_of


def run(argv: list[str]) -> int:
    """Exit code 0 when every line was translated."""
    parser = arguments.parser(
        "translate",
        "Translates standard input (or --input) line by line with a trained run.",
        epilog="Examples:\n"
        "  cat lines.txt | python -m t2t_flax translate --workdir=runs/toy\n"
        "  ... --n-best=4 --scores            N ||| translation ||| score, best first\n"
        "  ... --prefix=starts.txt            each translation begins with the line of the same number\n"
        "  ... --config.decode.strategy=sample --config.decode.top_p=0.9 --config.decode.seed=1",
    )
    arguments.add_workdir(parser)
    arguments.add_checkpoint(parser)
    parser.add_argument("--input", default="-", metavar="FILE", help="default: standard input")
    parser.add_argument("--output", default="-", metavar="FILE", help="default: standard output")
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
                f"--n-best={args.n_best} and --config.decode.n_best={overrides['decode.n_best']} differ: give one of them."
            )
    arguments.check_read_once(args.input, args.prefix)
    loaded = arguments.load_run(args, overrides)
    lines = arguments.read_lines(args.input)
    prefixes = arguments.read_lines(args.prefix) if args.prefix else None
    translations = loaded.translate(lines, prefixes=prefixes)
    n_best = loaded.config.decode.n_best
    task = task_of(loaded.config)
    out = []
    for number, (source, translation) in enumerate(zip(lines, translations, strict=True)):
        answers = [task.postprocess(source, hypothesis.text) for hypothesis in translation.hypotheses]
        out += _format(
            number, answers, [hypothesis.score for hypothesis in translation.hypotheses], n_best, args.scores
        )
    arguments.write_text(args.output, "".join(line + "\n" for line in out))
    _warn(translations)
    return 0


def _format(number: int, answers: list[str], scores: list[float], n_best: int, with_scores: bool) -> list[str]:
    if n_best == 1:
        return [f"{answers[0]}\t{scores[0]:.4f}" if with_scores else answers[0]]
    ends = [f" ||| {score:.4f}" if with_scores else "" for score in scores]
    return [f"{number} ||| {answer}{end}" for answer, end in zip(answers, ends, strict=True)]


def _warn(translations: list) -> None:
    for what, numbers in (
        ("truncated to config.decode.max_source_length", [i for i, t in enumerate(translations, 1) if t.source_cut]),
        (
            "ended by the length limit (config.decode.max_length_offset)",
            [i for i, t in enumerate(translations, 1) if t.hit_cap],
        ),
    ):
        if numbers:
            shown = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
            print(f"warning: {len(numbers)} of {len(translations)} lines {what}: line {shown}", file=sys.stderr)
