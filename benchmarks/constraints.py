"""Constrained beam search: BLEU, phrases used and sentences a second, with words of the reference as constraints.

    python -m benchmarks.constraints --workdir=RUN --source=test.en --reference=test.de [--sentences=300] [--beams=8]

As Post and Vilar 2018: of each reference, one random word or a random phrase of three words is what the translation contains.
Each search translates all sentences twice; the second time counts, since the first compiles.
"""

import argparse
import json
import random
import time

import sacrebleu

from t2t_flax.data.sources.text import lines as lines_of
from t2t_flax.evaluation.restore import load
from t2t_flax.extensions.constraints.lines import contains

SEED = 0


def phrase_of(reference: str, words: int, rng: random.Random) -> str:
    """Consecutive words of a reference, without punctuation at the ends."""
    found = reference.split()
    start = rng.randrange(max(1, len(found) - words + 1))
    return " ".join(found[start : start + words]).strip('.,!?;:"()')


def main() -> None:
    """Prints a row for each search."""
    parser = argparse.ArgumentParser()
    for name in ("workdir", "source", "reference"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--beams", type=int, default=8)
    args = parser.parse_args()
    from etils import epath

    texts = [list(lines_of(epath.Path(path)))[: args.sentences] for path in (args.source, args.reference)]
    pairs = [(source, reference) for source, reference in zip(*texts, strict=True) if source.strip()]
    sources, references = (list(side) for side in zip(*pairs, strict=True))
    base = {"decode.beam_size": str(args.beams), "mesh.cpu_devices": "1"}
    constrained = base | {"decode.strategy": "constrained_beam", "constraints.lines": "json"}
    rng = random.Random(SEED)
    wanted = {words: [phrase_of(reference, words, rng) for reference in references] for words in (1, 3)}

    def asking(phrases, key):
        return [json.dumps({"text": s, key: [p] if p else []}) for s, p in zip(sources, phrases, strict=True)]

    searches = [
        ("beam", base, sources, None),
        ("constrained, no phrases", constrained, asking([""] * len(sources), "constraints"), None),
        ("one word", constrained, asking(wanted[1], "constraints"), wanted[1]),
        ("phrase of three", constrained, asking(wanted[3], "constraints"), wanted[3]),
        ("avoid the word", base | {"constraints.lines": "json"}, asking(wanted[1], "avoid"), wanted[1]),
        ("no 3-gram twice", base | {"constraints.no_repeat_ngram": "3"}, sources, None),
    ]
    free: list[str] = []
    for name, overrides, lines, phrases in searches:
        model = load(args.workdir, overrides=overrides)
        model.translate(lines)
        began = time.perf_counter()
        found = [translation.text for translation in model.translate(lines)]
        rate = len(lines) / (time.perf_counter() - began)
        free = free or found
        bleu = sacrebleu.corpus_bleu(found, [references]).score

        def used(texts, phrases=phrases):
            asked = [(text, phrase) for text, phrase in zip(texts, phrases or [""] * len(texts), strict=True) if phrase]
            return f"{100 * sum(contains(*pair) for pair in asked) / len(asked):.1f} %" if asked else "-"

        print(
            f"{name:24} BLEU {bleu:5.2f}   used {used(found)} (beam: {used(free)})   {rate:.1f} sentences/s", flush=True
        )


if __name__ == "__main__":
    main()
