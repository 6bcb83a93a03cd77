"""What data.language_filter drops of right pairs, and what it finds of wrong ones; lines a second of one core.

    python -m benchmarks.language_filter --pairs=train.en,train.de --out=benchmarks/results/language_filter.json

Wrong pairs are made from the right ones: both sides swapped, or one side copied to the other. Short pairs are the first words
of each side.
"""

import argparse
import importlib.metadata
import itertools
import platform
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.record import machine, publish
from t2t_flax.data.language_filter import LanguageFilter
from t2t_flax.data.sources import open_source

CONFIDENCES = (0.5, 0.9, 0.95, 0.99)
WORDS = (4, 2)
WRONG: dict[str, Callable[[str, str], tuple[str, str]]] = {
    "swapped": lambda source, target: (target, source),
    "source_copied": lambda source, target: (source, source),
    "target_copied": lambda source, target: (target, target),
}


def row(pairs: list[tuple[str, str]], languages: tuple[str, str], confidence: float) -> dict[str, float]:
    """Percent of right pairs dropped, and of each kind of wrong ones."""
    language_filter = LanguageFilter(languages, confidence)
    kinds = {"right": lambda *pair: pair} | WRONG
    return {
        name: round(100 * sum(not language_filter.accepts(*make(*pair)) for pair in pairs) / len(pairs), 2)
        for name, make in kinds.items()
    }


def main() -> None:
    """Measures at several confidences and lengths, and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", default="toy:train", help="a source as in config.data.train")
    parser.add_argument("--languages", default="en,de")
    parser.add_argument("--count", type=int, default=5000, help="the first pairs")
    parser.add_argument("--out")
    args = parser.parse_args()
    source_language, target_language = args.languages.split(",")
    source = open_source(args.pairs, source_language=source_language, target_language=target_language)
    pairs = list(itertools.islice(source.pairs(), args.count))
    texts = {"whole sentences": pairs}
    for words in WORDS:
        texts[f"first {words} words"] = [tuple(" ".join(side.split()[:words]) for side in pair) for pair in pairs]
    languages = source_language, target_language
    rows = [
        {"text": name, "confidence": confidence, "dropped_percent": row(some, languages, confidence)}
        for name, some in texts.items()
        for confidence in CONFIDENCES
    ]
    began = time.process_time()
    language_filter = LanguageFilter(languages, 0.95)
    for pair in pairs:
        language_filter.accepts(*pair)
    seconds = time.process_time() - began
    names = ",".join(Path(part).name for part in args.pairs.split(","))
    record = {
        "what": "pairs that data.language_filter drops, in percent",
        "command": f"python -m benchmarks.language_filter --pairs={names} --languages={args.languages} --count={args.count}",
        "pairs": len(pairs),
        "rows": rows,
        "lines_per_second_of_one_core": round(2 * len(pairs) / seconds),
        "py3langid": importlib.metadata.version("py3langid"),
        "python": platform.python_version(),
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main()
