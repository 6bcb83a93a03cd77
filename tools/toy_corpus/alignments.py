"""Gold word alignments of the built-in corpus, which follow from its grammar.

    python -m tools.toy_corpus.alignments --split=test --count=500 > test.gold

A sentence is a template with a part for each parameter. Replacing one part changes some words
always and others never. The words that always change express that part in both languages, so they
are aligned: surely where it is one word on each side, possibly where it is several. Words that no
part alone changes (articles, auxiliaries, prepositions) may be aligned with each other, but with no
other word.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import string

from tools.toy_corpus import corpus, draws, everyday_draws
from tools.toy_corpus.everyday_grammar import contracted

VARIANTS = 24
"""Other values of a part that are tried."""


def gold(split: str, index: int, *, seed: int = 0) -> str:
    """Return the alignment of a pair of `corpus.pair`: sure links as 0-0, possible ones as 0p1.

    Spaces divide words.
    """
    english, german = corpus.pair(split, index, seed=seed)
    blocks = [block for block in _blocks(split, index, seed, english, german) if all(block)]
    sure = {(*en, *de) for en, de in blocks if len(en) == len(de) == 1}
    possible = {pair for block in blocks for pair in itertools.product(*block)}
    rest = [
        [i for i in range(len(text.split())) if not any(i in block[side] for block in blocks)]
        for side, text in enumerate((english, german))
    ]
    possible |= set(itertools.product(*rest))
    links = [(pair, "-" if pair in sure else "p") for pair in sorted(sure | possible)]
    return " ".join(f"{en}{mark}{de}" for (en, de), mark in links)


def _blocks(
    split: str, index: int, seed: int, english: str, german: str
) -> list[tuple[set[int], set[int]]]:
    """Return (English words, German words) that every other value of a part changes, by part."""
    for attempt in itertools.count():
        below = corpus.stream(seed, split, index, attempt)
        module = everyday_draws if below(100) < corpus.EVERYDAY_PERCENT else draws
        template, parameters = module.choose(below)
        values = draws.values_of(below, parameters)
        pair = template(**values)
        short = pair[0] != english
        if german == pair[1] and english == (contracted(pair[0]) if short else pair[0]):
            break
    own = tuple(map(_words, (english, german)))
    blocks = []
    for number, (name, domain) in enumerate(parameters):
        stay: tuple[set[int], set[int]] = set(), set()
        tried = 0
        for variant in range(VARIANTS):
            value = domain(corpus.stream(seed, split, index, attempt, 1 + number, variant))
            if getattr(value, "en", value) in [getattr(v, "en", v) for v in values.values()]:
                continue
            other = template(**{**values, name: value})
            other = (contracted(other[0]) if short else other[0]), other[1]
            tried += 1
            for kept, words, text in zip(stay, own, other, strict=True):
                kept |= _kept(words, _words(text))
        if tried:
            changed = [
                {i for i in range(len(words)) if i not in kept}
                for words, kept in zip(own, stay, strict=True)
            ]
            blocks.append((changed[0], changed[1]))
    return blocks


def _words(text: str) -> list[str]:
    return [word.strip(string.punctuation).lower() or word for word in text.split()]


def _kept(words: list[str], others: list[str]) -> set[int]:
    """The words that are also in the other sentence; of equal words, all or none."""
    lost = collections.Counter(words) - collections.Counter(others)
    counts = collections.Counter(words)
    return {i for i, word in enumerate(words) if lost[word] < counts[word]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--split", choices=corpus.SPLITS, default="test")
    parser.add_argument("--count", type=int, default=500)
    args = parser.parse_args()
    for index in range(args.count):
        print(gold(args.split, index))


if __name__ == "__main__":
    main()
