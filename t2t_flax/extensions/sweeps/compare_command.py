"""`compare`: test the differences between evaluated systems."""

from etils import epath

from t2t_flax.cli import arguments
from t2t_flax.errors import UserError
from t2t_flax.files import atomic_write
from t2t_flax.json_file import parse_json


def run(argv: list[str]) -> int:
    """Return exit code 0 when the table is printed."""
    parser = arguments.parser(
        "compare",
        "Compares systems on the same test sentences: each one's score, and its difference to the"
        " first, with 95 % interval\nand two-sided p by paired bootstrap, corrected for the number"
        " of differences.",
        epilog=(
            "Examples:\n  python -m t2t_flax compare runs/a runs/b\n  python -m t2t_flax compare"
            " runs/a/eval/test-500.json runs/a/eval/test-1000.json --score=chrf\n  python -m"
            " t2t_flax compare runs/a runs/b --html=differences.html"
        ),
    )
    parser.add_argument(
        "systems",
        nargs="+",
        metavar="SYSTEM",
        help="record of an evaluation, or folder of a run: its final evaluation",
    )
    parser.add_argument("--split", metavar="SET", help="test set, for runs with several")
    parser.add_argument(
        "--score",
        default="",
        metavar="SCORE",
        help=(
            "sacrebleu (default), tokenized_bleu, paper_bleu, chrf, chrf++, ter, or a learned"
            " metric of both; parsing: f1"
        ),
    )
    parser.add_argument("--table", metavar="FILE.csv", help="also write the table to this file")
    parser.add_argument(
        "--html",
        metavar="FILE.html",
        help="also write a page that sets two systems side by side, sentence by sentence",
    )
    parser.add_argument(
        "--tags",
        metavar="FILE",
        help="a tag for each line of the test set, such as its domain, for the page's counts",
    )
    args, overrides = arguments.parse(parser, argv)
    if overrides:
        raise UserError("compare decodes nothing, so --config keys have no effect: leave them out.")
    if len(args.systems) < 2:
        raise UserError("name at least two systems.")
    if args.html and len(args.systems) != 2:
        raise UserError("--html sets two systems side by side: name two.")
    if args.tags and not args.html:
        raise UserError("--tags are for the page: give --html=FILE.html, too.")
    for flag, output in (("--table", args.table), ("--html", args.html)):
        if output:
            arguments.check_output(flag, output)
    from t2t_flax.extensions.sweeps.compare import COLUMNS, compare_all
    from t2t_flax.extensions.sweeps.report import csv_text, markdown_table

    records = [record_of(system, args.split) for system in args.systems]
    table, notes = compare_all(records, args.systems, args.score)
    print("\n".join([markdown_table(COLUMNS, table, right=("score", "sentences")), "", *notes]))
    if args.table:
        atomic_write(args.table, csv_text(COLUMNS, table))
    if args.html:
        from t2t_flax.extensions.sweeps.compare_page import comparison_page

        atomic_write(
            args.html,
            comparison_page(
                records[0], records[1], args.systems, score=args.score, tags=args.tags or ""
            ),
        )
        print(f"page: {args.html}")
    return 0


def record_of(system: str, split: str | None) -> epath.Path:
    """Return the record of a named system.

    It is the file itself, or a run's final evaluation. Raises UserError for a run without one, and
    for one with several test sets and no `split`.
    """
    folder = epath.Path(system)
    if not folder.is_dir():
        return folder
    try:
        records = dict(parse_json((folder / "complete.json").read_bytes())["records"])
    except (OSError, ValueError, LookupError, TypeError):
        records = {}
    if split is None and len(records) > 1:
        raise UserError(
            f"{system} has the test sets {', '.join(records)}: choose one with --split=SET."
        )
    name = records.get(split or next(iter(records), ""))
    if name is None:
        raise UserError(
            f"{system} has no final evaluation{f' of {split}' if split else ''}: name a record in"
            f" its eval/, or make one: evaluate --workdir={system} --split=valid"
        )
    return folder / "eval" / name
