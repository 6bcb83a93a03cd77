"""`align`: word alignments of given pairs.

Prints alignments, their errors against gold alignments, and the head that aligns best.
"""

import argparse
import itertools
from collections.abc import Iterator

from t2t_flax.cli import arguments
from t2t_flax.cli.lines import iterate_lines, open_output, to_stderr, window_size
from t2t_flax.errors import OK, UserError
from t2t_flax.extensions.alignments.links import Errors, Gold, check_words, hard_links, parse_gold
from t2t_flax.registry import LINES

_SHOWN = 10


def run(argv: list[str]) -> int:
    """Return exit code 0 when every pair has its line."""
    parser = arguments.parser(
        "align",
        "Aligns the words of given pairs with a head of the decoder's attention. Writes a line for"
        " each pair: links\nSOURCE-TARGET of words that spaces divide, counted from 0; an empty"
        " line for a pair with an empty side.",
        epilog=(
            "Examples:\n  python -m t2t_flax align --workdir=runs/toy test.en,test.de >"
            " test.links\n  ... --gold=test.gold           also prints alignment error rate,"
            " precision and recall\n  ... --choose                   prints every head, the best"
            " first, and the keys that make it the run's"
        ),
    )
    arguments.add_workdir(parser)
    arguments.add_checkpoint(parser)
    arguments.add_flags(parser, LINES)
    parser.add_argument(
        "pairs",
        metavar="SRC,TGT",
        help="the pairs: two text files, or another form of config.data.test",
    )
    parser.add_argument(
        "--alignments",
        default="hard",
        metavar="FORM",
        help="hard, soft or a probability, as of `translate`",
    )
    parser.add_argument(
        "--gold", metavar="FILE", help="sure links 0-0 and possible ones 0p1, a line for each pair"
    )
    parser.add_argument(
        "--gold-first",
        type=arguments.count(0, 1),
        default=0,
        metavar="N",
        help="number of the first word in --gold, 0 or 1",
    )
    parser.add_argument(
        "--choose",
        action="store_true",
        help="print how well each head aligns, instead of alignments",
    )
    parser.add_argument(
        "--output",
        default="-",
        metavar="FILE",
        help="file for the alignments; default: standard output",
    )
    args, overrides = arguments.parse(parser, argv)
    arguments.check_output("--output", args.output)
    gold = _read_gold(args.gold, args.gold_first) if args.gold else None
    return _choose(args, overrides, gold) if args.choose else _align(args, overrides, gold)


def _align(args: argparse.Namespace, overrides: dict[str, str], gold: list[Gold] | None) -> int:
    from t2t_flax.extensions.alignments.attention import is_cut, word_weights
    from t2t_flax.extensions.alignments.choice import head_of
    from t2t_flax.extensions.alignments.outputs import AlignmentForm

    form = AlignmentForm(args.alignments)
    loaded = arguments.load_run(args, overrides).for_decoding()
    pairs, head = _pairs(args, loaded), head_of(loaded)
    links, cut, empty, number = [], [], [], 0
    with open_output(args.output) as write:
        while window := list(itertools.islice(pairs, window_size(loaded))):
            weights = word_weights(loaded, window, head)
            write("".join(form(of_pair) + "\n" for of_pair in weights))
            cut += [number + i for i, pair in enumerate(window) if is_cut(loaded, pair)]
            empty += [number + i for i, of_pair in enumerate(weights) if not of_pair.any()]
            links += [hard_links(of_pair) for of_pair in weights] if gold else []
            _check(gold, window, number)
            number += len(window)
    _warn(empty, number, "have an empty side, and no links")
    _warn(cut, number, "are aligned only up to config.decode.max_source_length tokens")
    if gold is not None:
        from t2t_flax.extensions.alignments.links import errors

        _check_count(gold, number, args.gold)
        to_stderr(f"{head}: {_shown(errors(links, gold))} (hard links of {number:,} pairs)")
    return OK


def _choose(args: argparse.Namespace, overrides: dict[str, str], gold: list[Gold] | None) -> int:
    from t2t_flax.extensions.alignments.choice import ranked

    loaded = arguments.load_run(args, overrides).for_decoding()
    pairs = list(_pairs(args, loaded))
    if gold is not None:
        _check(gold, pairs, 0)
        _check_count(gold, len(pairs), args.gold)
    rows = ranked(loaded, pairs, gold)
    with open_output(args.output) as write:
        write(
            "predictability: mean log-probability (nats) of a target word given its source word, by"
            " the other links\n"
        )
        for head, value, errors_of_head in rows:
            write(
                f"{value:8.3f}  {_shown(errors_of_head) + '  ' if errors_of_head else ''}{head}\n"
            )
        best = next(head for head, *_ in rows if head.layer)
        write(f"the best, as keys: {best.flags}\n")
    return OK


def _pairs(args: argparse.Namespace, loaded) -> Iterator:
    """Yield the pairs; a pair that its source drops has empty sides."""
    from t2t_flax.extensions.alignments.attention import Pair, require_translation
    from t2t_flax.tasks import task_of

    require_translation(loaded)
    read = arguments.Changes(loaded, arguments.given_flags(args)).source
    rows = task_of(loaded.config).open_source(args.pairs, key="pairs").rows()
    return (
        Pair("", "") if isinstance(row, str) else Pair(read(row[0]), row[1], row[0]) for row in rows
    )


def _read_gold(name: str, first: int) -> list[Gold]:
    return [
        parse_gold(line, f"{name} line {number}", first)
        for number, line in enumerate(iterate_lines(name), 1)
    ]


def _check(gold: list[Gold] | None, pairs, first: int) -> None:
    for number, pair in enumerate(pairs if gold else (), first):
        if number < len(gold or ()):
            sizes = len(pair.line.split()), len(pair.target.split())
            check_words((gold or [])[number].possible, *sizes, f"--gold line {number + 1}")


def _check_count(gold: list[Gold], pairs: int, name: str) -> None:
    if len(gold) != pairs:
        raise UserError(
            f"{name} has {len(gold)} lines, and there are {pairs} pairs: expected one line for each"
            " pair."
        )


def _shown(found: Errors) -> str:
    return f"AER {found.error_rate:.3f}, precision {found.precision:.3f}, recall {found.recall:.3f}"


def _warn(numbers: list[int], total: int, what: str) -> None:
    if numbers:
        places = ", ".join(str(number + 1) for number in numbers[:_SHOWN]) + (
            ", ..." if len(numbers) > _SHOWN else ""
        )
        to_stderr(f"warning: {len(numbers)} of {total} pairs {what}: {places}")
