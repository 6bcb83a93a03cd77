"""Split paragraphs made of the lines of a test set: agreement, and BLEU with --split-sentences.

python -m benchmarks.paragraphs --source=newstest2014.en --language=en
python -m benchmarks.paragraphs --source=test.en --target=test.de --workdir=runs/m30k
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.record import command_of, machine, publish, shown_workdir


def boundaries(sentences: list[str]) -> set[int]:
    """Return the cuts of a text, counted in characters other than spaces."""
    ends, total = set(), 0
    for sentence in sentences:
        total += len("".join(sentence.split()))
        ends.add(total)
    return ends - {total}


def agreement(groups: list[list[str]], language: str) -> dict[str, float]:
    """Return the shares of sentence ends that are found, and of found ends that are right."""
    from t2t_flax.extensions.shared.sentences import split

    right = found = there = 0
    for group in groups:
        expected, made = (
            boundaries(group),
            boundaries(list(split(" ".join(group), language).sentences)),
        )
        right, found, there = right + len(expected & made), found + len(made), there + len(expected)
    return {
        "boundaries": there,
        "found_percent": round(100 * right / there, 2),
        "right_percent": round(100 * right / found, 2),
    }


def scores(
    workdir: str, overrides: dict[str, str], groups: list[list[str]], targets: list[list[str]]
) -> dict[str, Any]:
    """Return sacreBLEU of the paragraphs, translated whole, as split, and as they were."""
    import sacrebleu

    from t2t_flax.cli.arguments import prepare_to_load
    from t2t_flax.evaluation.restore import load
    from t2t_flax.extensions.paragraphs.model import SentenceModel

    prepare_to_load(workdir, overrides)
    model = load(workdir, overrides=overrides).for_decoding()
    paragraphs, references = ([" ".join(group) for group in side] for side in (groups, targets))
    texts = iter(
        each.text for each in model.translate([line for group in groups for line in group])
    )
    outputs = {
        "paragraphs": [each.text for each in model.translate(paragraphs)],
        "split": [each.text for each in SentenceModel(model).translate(paragraphs)],
        "sentences_given": [" ".join(next(texts) for _ in group) for group in groups],
    }
    return {
        name: {
            "bleu": round(sacrebleu.corpus_bleu(lines, [references]).score, 2),
            "words_per_reference_word": round(_words(lines) / _words(references), 3),
        }
        for name, lines in outputs.items()
    }


def _words(lines: list[str]) -> int:
    return sum(len(line.split()) for line in lines)


def main(argv: list[str]) -> None:
    """Measure and print the record."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.paragraphs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--source", required=True, metavar="FILE", help="a sentence in each line")
    parser.add_argument("--target", metavar="FILE", help="its references; with --workdir")
    parser.add_argument("--workdir", metavar="DIR", help="a trained run")
    parser.add_argument("--language", default="en", help="of the source (default: en)")
    parser.add_argument("--sentences", type=int, default=5, help="of each paragraph (default: 5)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the config"
    )
    parser.add_argument(
        "--out", metavar="FILE.json", help="where to write the record (default: print it)"
    )
    args = parser.parse_args(argv)
    sides = [
        Path(name).read_text("utf-8").splitlines() for name in (args.source, args.target) if name
    ]
    groups = [
        [side[i : i + args.sentences] for i in range(0, len(side), args.sentences)]
        for side in sides
    ]
    record = {
        "what": f"paragraphs of {args.sentences} lines",
        "command": command_of("paragraphs", argv),
        "splitting": agreement(groups[0], args.language),
    }
    if args.workdir:
        overrides = dict(item.split("=", 1) for item in args.set)
        record |= {
            "model": shown_workdir(args.workdir),
            **scores(args.workdir, overrides, *groups),
            "machine": machine(),
        }
    publish(record, args.out)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
