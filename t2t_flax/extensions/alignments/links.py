"""Word links in Pharaoh format, `0-0 1-2`, and their errors against gold alignments."""

import dataclasses
import re
from collections.abc import Iterable, Sequence

import numpy as np

from t2t_flax.errors import UserError

Links = frozenset[tuple[int, int]]
"""Pairs (source word index, target word index), from 0."""
_LINK = re.compile(r"(\d+)([-p?])(\d+)")


@dataclasses.dataclass(frozen=True)
class Gold:
    """Gold alignment of a pair.

    Args:
        sure: required links.
        possible: permitted links, including the sure ones.
    """

    sure: Links
    possible: Links


def parse_gold(line: str, where: str, first: int = 0) -> Gold:
    """Parse a gold alignment such as `0-0 1p2`, where p or ? means possible.

    Raises UserError for another line.

    Args:
        first: number of the first word.
    """
    links: dict[bool, set[tuple[int, int]]] = {True: set(), False: set()}
    for item in line.split():
        match = _LINK.fullmatch(item)
        if not match or min(int(match[1]), int(match[3])) < first:
            raise UserError(
                f"{where}: {item[:40]!r} is no link. Expected SOURCE-TARGET, or SOURCEpTARGET for a"
                f" possible one: numbers of words, from {first}."
            )
        links[match[2] == "-"].add((int(match[1]) - first, int(match[3]) - first))
    return Gold(frozenset(links[True]), frozenset(links[True] | links[False]))


def check_words(links: Links, source_words: int, target_words: int, where: str) -> None:
    """Raise UserError for a link to a word that the pair does not have."""
    for source, target in sorted(links):
        if source >= source_words or target >= target_words:
            raise UserError(
                f"{where}: a link {source}-{target}, but the pair has {source_words} source and"
                f" {target_words} target words, counted from 0 and divided at spaces. Is it the"
                " alignment of this text, before any tokenizer?"
            )


def pharaoh(links: Iterable[tuple[int, int]]) -> str:
    """Return links as `0-0 1-2`, in the order of source words."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def hard_links(weights: np.ndarray) -> Links:
    """Link each target word to its source word with the highest weight.

    A target word without any weight has no link.

    Args:
        weights: [target words, source words]; the first of equal weights wins.
    """
    return frozenset((int(row.argmax()), target) for target, row in enumerate(weights) if row.any())


def links_from(weights: np.ndarray, threshold: float) -> Links:
    """Return all links with at least this weight."""
    return frozenset(
        (int(source), int(target))
        for target, source in zip(*np.nonzero(weights >= threshold), strict=True)
    )


def soft(weights: np.ndarray) -> str:
    """Return weights in Marian's soft format.

    For each target word, the weights of all source words follow, to four digits, separated by
    commas.
    """
    return " ".join(",".join(f"{round(float(weight), 4):g}" for weight in row) for row in weights)


@dataclasses.dataclass(frozen=True)
class Errors:
    """Alignment errors against gold, by sums over pairs (Och & Ney 2003, section 4)."""

    error_rate: float
    precision: float
    recall: float


def errors(alignments: Sequence[Links], gold: Sequence[Gold]) -> Errors:
    """Return AER, precision and recall.

    AER = 1 - (|A and S| + |A and P|) / (|A| + |S|), precision |A and P| / |A|, recall |A and S| /
    |S|. Raises UserError if the gold alignments have no sure link.
    """
    linked = sum(map(len, alignments))
    sure = sum(len(g.sure) for g in gold)
    if not sure:
        raise UserError("the gold alignments have no sure link: there is nothing to compare with.")
    in_sure = sum(len(a & g.sure) for a, g in zip(alignments, gold, strict=True))
    in_possible = sum(len(a & g.possible) for a, g in zip(alignments, gold, strict=True))
    return Errors(
        1 - (in_sure + in_possible) / (linked + sure), in_possible / max(1, linked), in_sure / sure
    )
