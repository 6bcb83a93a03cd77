"""Write the built-in corpus: the files that the package ships, or a larger corpus like it.

    python -m tools.toy_corpus                            # t2t_flax/data/sources/toy_en_de.*.tsv.xz
    python -m tools.toy_corpus --split=train --count=1000000 --seed=1 --output=large.tsv

The shipped files were made with babel 2.18.0 and num2words 0.5.14; other versions may write some
numbers differently.
"""

import argparse
import lzma
import sys
from collections.abc import Iterable

from t2t_flax.data.sources import toy
from t2t_flax.files import atomic_write
from tools.toy_corpus.corpus import SPLITS, VERSION, pairs
from tools.toy_corpus.numbers import versions


def text(corpus: Iterable[tuple[str, str]]) -> bytes:
    """English TAB German, a pair a line."""
    return "".join(f"{english}\t{german}\n" for english, german in corpus).encode()


def compressed(split: str) -> bytes:
    """The content of the file that the package ships for a split."""
    return lzma.compress(text(pairs(split, toy.COUNTS[split])), preset=9 | lzma.PRESET_EXTREME)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--split", choices=SPLITS, default="train")
    parser.add_argument("--count", type=int, help="pairs; default: those of the shipped split")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--output", help="a TSV file; without it, the files of the package are written"
    )
    args = parser.parse_args()
    if args.output:
        atomic_write(
            args.output,
            text(pairs(args.split, args.count or toy.COUNTS[args.split], seed=args.seed)),
        )
        return
    generator = (f"toy {VERSION}", *versions())
    if generator != toy.GENERATOR:
        sys.exit(
            f"installed: {', '.join(generator)}; the shipped corpus is of"
            f" {', '.join(toy.GENERATOR)}. Install those, or change toy.GENERATOR: the fingerprint"
            " of the corpus changes with it."
        )
    for split in SPLITS:
        atomic_write(toy.path_of(split), compressed(split))
        print(
            f"{toy.path_of(split)}: {toy.COUNTS[split]:,} pairs,"
            f" {toy.path_of(split).stat().st_size:,} bytes"
        )


if __name__ == "__main__":
    main()
