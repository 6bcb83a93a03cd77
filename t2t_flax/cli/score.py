"""`score`: the log-probability of given pairs by forced decoding."""

from t2t_flax.cli import arguments
from t2t_flax.errors import UserError


def run(argv: list[str]) -> int:
    """Exit code 0 when every pair was scored."""
    parser = arguments.parser(
        "score",
        "Scores pairs with a trained run: log-probability of the target given the source (nats, EOS included),\n"
        "number of target tokens, and their mean. One line for each pair, TAB between the three.",
        epilog="Examples:\n"
        "  python -m t2t_flax score --workdir=runs/toy --source=test.en --target=test.de\n"
        "  ... --tokens                       adds each target piece with its log-probability",
    )
    arguments.add_workdir(parser)
    arguments.add_checkpoint(parser)
    arguments.add_target_language(parser)
    parser.add_argument(
        "--source", required=True, metavar="FILE", help="source lines, a file or a pipe; - = standard input"
    )
    parser.add_argument("--target", required=True, metavar="FILE", help="their translations, line by line")
    parser.add_argument("--output", default="-", metavar="FILE", help="default: standard output")
    parser.add_argument("--tokens", action="store_true", help="also print the log-probability of each target token")
    args, overrides = arguments.parse(parser, argv)
    arguments.check_read_once(args.source, args.target)
    arguments.check_output("--output", args.output)
    sources, targets = arguments.read_lines(args.source), arguments.read_lines(args.target)
    if len(sources) != len(targets):
        raise UserError(
            f"{args.source} has {len(sources)} lines and {args.target} has {len(targets)}: line i of one must be the "
            "translation of line i of the other."
        )
    loaded = arguments.load_run(args, overrides)
    where = f"{args.source}, {args.target} line {{}}".format
    scores = loaded.score(list(zip(sources, targets, strict=True)), where=where)
    arguments.write_text(args.output, "".join(_format(score, args.tokens) + "\n" for score in scores))
    return 0


def _format(score, tokens: bool) -> str:
    line = f"{score.log_prob:.6f}\t{len(score.tokens)}\t{score.per_token:.6f}"
    if tokens:
        pairs = zip(score.tokens, score.token_log_probs, strict=True)
        line += "\t" + " ".join(f"{token}:{value:.6f}" for token, value in pairs)
    return line
