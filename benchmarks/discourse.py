"""Documents in which `it` is the thing of the first sentence: er, sie or es in German, which single sentences do not tell.

python -m benchmarks.discourse --write=data/discourse      texts and document ids of train, valid and test
python -m t2t_flax train --config=configs/toy.py --workdir=runs/discourse-1-0 --config.data.root=data/discourse \\
    --config.data.train=train.en,train.de --config.data.valid=valid.en,valid.de --config.data.test=test.en,test.de \\
    --config.data.vocab_size=400 --config.documents.ids='train=train.ids, valid=valid.ids, test=test.ids' \\
    --config.documents.context=1 --config.documents.target_context=0 --config.model.d_model=64 --config.model.d_ff=256 \\
    --config.train.steps=400 --config.eval.every_steps=400 --config.checkpoint.every_steps=200 \\
    --config.optimizer.warmup_steps=100 --config.decode.strategy=greedy --config.mesh.cpu_devices=1
python -m benchmarks.discourse --records runs/discourse-*/eval/test-400.json     right pronouns of evaluations
"""

import argparse
import collections
import json
import random
from pathlib import Path
from typing import Any

from benchmarks.record import command_of, publish
from t2t_flax.filesystem import atomic_write
from tools.toy_corpus.everyday_words import SURROUNDINGS
from tools.toy_corpus.lexicon import ADJECTIVES, THINGS

DOCUMENTS = {"train": 20_000, "valid": 100, "test": 400}
_NAMES = ("Anna", "Julia", "Martin", "Jan", "Peter", "Maria", "Thomas", "Eva")
_ARTICLE = {"m": "Der", "f": "Die", "n": "Das"}
PRONOUNS = {"m": ("Er", "ihn"), "f": ("Sie", "sie"), "n": ("Es", "es")}
_USES = (("likes", "mag"), ("sees", "sieht"), ("buys", "kauft"), ("sells", "verkauft"), ("needs", "braucht"))
_ALONE = (("sleeps", "schläft"), ("waits", "wartet"), ("works", "arbeitet"), ("laughs", "lacht"))
_WHEN = (("", ""), (" today", " heute"), (" now", " jetzt"), (" often", " oft"))


def document(draw: random.Random) -> list[tuple[str, str]]:
    """Four sentences: one with a thing, two or three with `it`, perhaps one about a person."""
    thing = draw.choice([*(THINGS | SURROUNDINGS).values()])
    subject, other = PRONOUNS[thing.gender]
    first = draw.choice([*ADJECTIVES.values()])
    pairs = [(f"The {thing.en} is {first.en}.", f"{_ARTICLE[thing.gender]} {thing.de} ist {first.de}.")]
    person = draw.choice((0, 1, 2, 3))
    for number in (1, 2, 3):
        name, (when, wann) = draw.choice(_NAMES), draw.choice(_WHEN)
        if number == person:
            verb, verb_de = draw.choice(_ALONE)
            pairs.append((f"{name} {verb}{when}.", f"{name} {verb_de}{wann}."))
        elif draw.random() < 0.5:
            adjective = draw.choice([*ADJECTIVES.values()])
            pairs.append((f"It is {adjective.en}{when}.", f"{subject} ist{wann} {adjective.de}."))
        else:
            verb, verb_de = draw.choice(_USES)
            pairs.append((f"{name} {verb} it{when}.", f"{name} {verb_de} {other}{wann}."))
    return pairs


def write(folder: Path) -> None:
    """SPLIT.en, SPLIT.de and SPLIT.ids in the folder; no document is in two splits."""
    draw, seen = random.Random(1), set[str]()
    for split, count in reversed(DOCUMENTS.items()):
        documents: list[list[tuple[str, str]]] = []
        while len(documents) < count:
            made = document(draw)
            if (text := str(made)) not in seen:
                seen.add(text)
                documents.append(made)
        sides = {
            "en": [source for one in documents for source, _ in one],
            "de": [target for one in documents for _, target in one],
            "ids": [f"{split}{number}" for number, one in enumerate(documents) for _ in one],
        }
        folder.mkdir(parents=True, exist_ok=True)
        for name, lines in sides.items():
            atomic_write(folder / f"{split}.{name}", "".join(f"{line}\n" for line in lines))


def right_pronouns(hypotheses: list[str], references: list[str]) -> dict[str, Any]:
    """Of the references with a pronoun, by how many sentences after the thing: percent of hypotheses that have it."""
    pronouns = {word for both in PRONOUNS.values() for word in both}
    counts, right = collections.Counter[int](), collections.Counter[int]()
    for number, (made, expected) in enumerate(zip(hypotheses, references, strict=True)):
        words, given = ({word for word in text.rstrip(".").split()} & pronouns for text in (made, expected))
        if given:
            counts[number % 4] += 1
            right[number % 4] += words == given
    shares = {f"after_{n}": round(100 * right[n] / counts[n], 1) for n in sorted(counts)}
    return shares | {"all": round(100 * right.total() / counts.total(), 1), "sentences": counts.total()}


def row(path: Path) -> dict[str, Any]:
    """A row of the table of an evaluation record."""
    record = json.loads(path.read_text("utf-8"))
    hypotheses, references = (
        path.with_name(record[name]).read_text("utf-8").splitlines() for name in ("hypotheses", "references")
    )
    config = record["config"]
    return {
        "documents": {name: config.get("documents", {}).get(name, 0) for name in ("context", "target_context")},
        "updates": record["checkpoint"]["step"],
        "sacrebleu": round(record["scores"]["sacrebleu"]["score"], 2),
        "exact_match": record["scores"]["exact_match"]["score"],
        "right_pronouns": right_pronouns(hypotheses, references),
        "notes": record["notes"],
        "decode_seconds": record["seconds"]["decode"],
    }


def main(argv: list[str]) -> None:
    """Writes the texts, or prints a table."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.discourse", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, metavar="FOLDER")
    parser.add_argument("--records", type=Path, nargs="*", default=[], metavar="RECORD.json")
    parser.add_argument("--out", metavar="FILE.json", help="where to write the table (default: print it)")
    args = parser.parse_args(argv)
    if args.write:
        write(args.write)
    if args.records:
        publish({"command": command_of("discourse", argv), "rows": [*map(row, args.records)]}, args.out)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
