"""Microseconds of a core to tokenize a pair once, and to draw its segmentation in each pass.

    python -m benchmarks.drawing

The pairs come from the built-in corpus; words are looked up as in the second window of a run, after
the first.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.record import command_of, machine, publish
from t2t_flax.config import default_config, override, resolve
from t2t_flax.data.batching.windows import Samples
from t2t_flax.data.dataset import batches_of, prepare_corpus
from t2t_flax.tasks import task_of

KEYS = {
    "bpe_dropout=0.1": {"subwords.bpe_dropout": "0.1"},
    "unigram_alpha=0.2": {"subwords.unigram_alpha": "0.2", "data.tokenizer": "unigram"},
}


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return this process's CPU time, the least of the repeats: others may run beside it."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


def measure(keys: dict[str, str], pairs: int, repeats: int, folder: Path) -> dict[str, float]:
    """Return microseconds a pair."""
    data = {
        "data.train": f"toy:train:{pairs}",
        "data.valid": "toy:valid:20",
        "data.test": "",
        "data.vocab_size": "2000",
    }
    config = resolve(override(default_config(), data | keys))
    corpus = prepare_corpus(task_of(config), folder)
    reader = batches_of(config, corpus).stream.layouter.reader
    indices = np.arange(corpus.train.num_pairs)
    texts = [corpus.train.texts(i) for i in indices.tolist()]
    encode = corpus.tokenizers.source.encode_text

    def draw_pass(number: int) -> None:
        reader.read(Samples(indices, np.full_like(indices, number)))

    first = seconds(lambda: draw_pass(0), 1)
    numbers = iter(range(1, 1 + repeats))
    rest = seconds(lambda: draw_pass(next(numbers)), repeats)
    own = seconds(lambda: [(encode(source), encode(target)) for source, target in texts], repeats)
    taken = {"first_pass": first, "later_pass": rest, "tokenized": own}
    return {name: round(1e6 * value / len(indices), 1) for name, value in taken.items()} | {
        "tokens": round(float(max(side.mean() for side in corpus.train.lengths)), 1)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument(
        "--repeats", type=int, default=5, help="passes, the fastest of which counts"
    )
    parser.add_argument("--out", help="file of the record")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = {
            name: measure(keys, args.pairs, args.repeats, Path(folder) / str(number))
            for number, (name, keys) in enumerate(KEYS.items())
        }
    record = {
        "what": (
            "microseconds of one core for a pair that is drawn, beside its tokenization (both"
            " sides)"
        ),
        "command": command_of("drawing", sys.argv[1:]),
        "machine": machine(),
        "microseconds_a_pair": rows,
    }
    publish(record, args.out)


if __name__ == "__main__":
    main()
