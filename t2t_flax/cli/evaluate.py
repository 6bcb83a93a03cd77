"""`evaluate`: restore a run, decode test sets and write a record for each."""

from t2t_flax import api
from t2t_flax.cli import arguments
from t2t_flax.errors import OK


def run(argv: list[str]) -> int:
    """Return 0 when the records are written."""
    parser = arguments.parser(
        "evaluate",
        "Decodes and scores test sets with a trained run, and writes a record of each, with"
        " hypotheses and references:\nWORKDIR/eval/<set>-<step>.json (-mean<n> for an average of n,"
        " -best for --best). With other text or settings than\nthe run's own, the name also has a"
        " digest, so that no record replaces another. Needs only the workdir and the\ntext; runs on"
        " any hardware.",
        epilog=(
            "A translation record has three BLEUs, each with a note on how it was computed:"
            " sacrebleu (detokenised\ntext), tokenized_bleu (Moses tokens) and paper_bleu (as the"
            " paper's figures were scored); and chrf, chrf++ and\nter (lower is"
            " better).\n\n--config.decode.KEY=VALUE changes the search, --config.data.test=SRC,TGT"
            " the text (SRC,REF1,REF2: several\nreferences), --config.eval.sacrebleu_tokenizer=NAME"
            " how sacreBLEU tokenises. Several test sets are\n--config.data.test='NAME=SRC,TGT;"
            " NAME=SRC,TGT'."
        ),
    )
    arguments.add_workdir(parser, several=True)
    parser.add_argument(
        "--split",
        metavar="SET",
        help=(
            "valid, test (default; all sets of config.data.test), or the name of a set (valid.NAME"
            " of validation sets)"
        ),
    )
    arguments.add_checkpoint(parser)
    parser.add_argument(
        "--output",
        metavar="DIR",
        help="folder that gets the records, as DIR/eval/..., instead of the workdir",
    )
    arguments.add_flags(parser, "evaluate")
    args, overrides = arguments.parse(parser, argv)
    if args.output:
        arguments.check_output("--output", args.output, folder=True)
    choice = arguments.checkpoint(args)
    api.evaluate(
        args.workdir, args.split or "test", **choice, overrides=overrides, output=args.output
    )
    return OK
