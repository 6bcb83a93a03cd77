"""Compare searches with constraints with plain beam search: BLEU, phrases used and speed.

    python -m benchmarks.constraints --workdir=RUN --source=test.en --reference=test.de \\
        [--out=FILE.json]

As in Post and Vilar 2018, each translation must contain one random word, or a random phrase of
three words, of its reference. Each search first translates all lines. Then all translate the same
part of them again, in alternating rounds, so that a busy machine delays each of them. Seconds of
CPU time leave out other programs.
"""

import argparse
import dataclasses
import json
import platform
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import sacrebleu
from etils import epath

from benchmarks.record import command_of, machine, publish, shown_workdir
from t2t_flax.data.sources.text import lines as lines_of
from t2t_flax.evaluation.restore import TrainedModel, load
from t2t_flax.extensions.constraints.lines import contains

SEED = 0


@dataclasses.dataclass
class Search:
    """A row: the lines to translate, and the phrase that each output contains.

    Attributes:
      phrases: an empty one for an output without a constraint.
      seconds: (wall, CPU) of each round.
    """

    name: str
    overrides: dict[str, str]
    lines: Sequence[str]
    phrases: Sequence[str] = ()
    found: list[str] = dataclasses.field(default_factory=list)
    seconds: list[tuple[float, float]] = dataclasses.field(default_factory=list)

    def time(self, model: TrainedModel, count: int) -> None:
        """Translate the first `count` lines, whose programs are compiled."""
        began = time.perf_counter(), time.process_time()
        model.translate(self.lines[:count])
        self.seconds.append((time.perf_counter() - began[0], time.process_time() - began[1]))


def phrase_of(reference: str, words: int, rng: random.Random) -> str:
    """Consecutive words of a reference, without punctuation at the ends."""
    found = reference.split()
    start = rng.randrange(max(1, len(found) - words + 1))
    return " ".join(found[start : start + words]).strip('.,!?;:"()')


def searches(sources: Sequence[str], references: Sequence[str], beams: int) -> list[Search]:
    """Return the first is plain beam search."""
    base = {"decode.beam_size": str(beams), "mesh.cpu_devices": "1"}
    constrained = base | {"decode.strategy": "constrained_beam", "constraints.lines": "json"}
    rng = random.Random(SEED)
    word, three = (
        [phrase_of(reference, words, rng) for reference in references] for words in (1, 3)
    )

    def asking(phrases: Sequence[str], key: str = "constraints") -> list[str]:
        return [
            json.dumps({"text": s, key: [p] if p else []})
            for s, p in zip(sources, phrases, strict=True)
        ]

    return [
        Search("beam", base, sources),
        Search("constrained, no phrases", constrained, asking([""] * len(sources))),
        Search("one word", constrained, asking(word), word),
        Search("phrase of three words", constrained, asking(three), three),
        Search("avoid the word", base | {"constraints.lines": "json"}, asking(word, "avoid"), word),
        Search("no 3-gram twice", base | {"constraints.no_repeat_ngram": "3"}, sources),
    ]


def share_with(texts: Sequence[str], phrases: Sequence[str]) -> float | None:
    """Return the share of texts that contain their phrase; texts without a phrase do not count."""
    asked = [(text, phrase) for text, phrase in zip(texts, phrases, strict=False) if phrase]
    return round(sum(contains(*pair) for pair in asked) / len(asked), 4) if asked else None


def entry_of(
    search: Search, plain: Search, references: Sequence[str], count: int
) -> dict[str, Any]:
    """Return the row in the record. slower: seconds of CPU time, relative to plain beam search."""
    wall, cpu = (min(column) for column in zip(*search.seconds, strict=True))
    return {
        "search": search.name,
        "sacrebleu": round(sacrebleu.corpus_bleu(search.found, [references]).score, 2),
        "contain_it": share_with(search.found, search.phrases),
        "contain_it_with_beam": share_with(plain.found, search.phrases),
        "sentences_per_second": round(count / wall, 2),
        "cpu_seconds": round(cpu, 2),
        "slower": round(cpu / min(seconds for _, seconds in plain.seconds), 2),
    }


def main(argv: list[str]) -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.constraints",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name in ("workdir", "source", "reference"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--sentences", type=int, help="default: all")
    parser.add_argument("--timed", type=int, default=150, help="of them, translated in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beams", type=int, default=8)
    parser.add_argument(
        "--out", metavar="FILE.json", help="where to write the record (default: print it)"
    )
    args = parser.parse_args(argv)
    texts = [
        list(lines_of(epath.Path(path)))[: args.sentences] for path in (args.source, args.reference)
    ]
    pairs = [
        (source, reference) for source, reference in zip(*texts, strict=True) if source.strip()
    ]
    sources, references = (list(side) for side in zip(*pairs, strict=True))
    rows = searches(sources, references, args.beams)
    models = [load(args.workdir, overrides=row.overrides) for row in rows]
    for row, model in zip(rows, models, strict=True):
        row.found = [translation.text for translation in model.translate(row.lines)]
        model.translate(row.lines[: args.timed])
        print(row.name, sacrebleu.corpus_bleu(row.found, [references]), file=sys.stderr, flush=True)
    for _ in range(args.rounds):
        for row, model in zip(rows, models, strict=True):
            row.time(model, args.timed)
    record = {
        "what": (
            f"beam search with constraints beside it without, {shown_workdir(args.workdir)},"
            f" {args.beams} beams"
        ),
        "command": command_of("constraints", argv),
        "sentences": len(sources),
        "timed": min(args.timed, len(sources)),
        "rows": [entry_of(row, rows[0], references, min(args.timed, len(sources))) for row in rows],
        "versions": {"python": platform.python_version()},
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main(sys.argv[1:])
