"""Microseconds of one core for a pair whose segmentation or text is drawn anew in each pass, beside those to tokenize it once.

    python -m benchmarks.drawing
    python -m benchmarks.drawing --train=200

The pairs are those of the built-in corpus; words are looked up as in the second window of a run, after the first. With --train:
trains that many updates on a filtered mixture whose pairs are drawn and on the plain text, in turns, and shows what the first
updates take; the first round prepares the data. Pairs: see `benchmarks.prepare`.
"""

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.prepare import real_pairs, synthetic_pairs
from benchmarks.record import command_of, machine, publish
from t2t_flax.config import default_config, override, resolve
from t2t_flax.data.batching.streams import Visits
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.hooks import drawn_pairs
from t2t_flax.tasks import task_of

KEYS = {
    "bpe_dropout=0.1": {"subwords.bpe_dropout": "0.1"},
    "unigram_alpha=0.2": {"subwords.unigram_alpha": "0.2", "data.tokenizer": "unigram"},
    "typos=0.05, upper_case=0.02": {"noise.typos": "0.05", "noise.upper_case": "0.02"},
    "all with BPE": {"subwords.bpe_dropout": "0.1", "noise.typos": "0.05", "noise.upper_case": "0.02"},
}
SHARES = {"clean": 0.75, "web": 0.25}
MIXTURE = {
    "filters.duplicates": "True", "filters.length_ratio": "3", "filters.words": "1,60", **KEYS["all with BPE"]
}  # fmt: skip


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Of this process's processor, the least of the repeats: others may run beside it."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


def measure(keys: dict[str, str], pairs: int, repeats: int, folder: Path) -> dict[str, float]:
    """Microseconds a pair."""
    data = {
        "data.train": f"toy:train:{pairs}",
        "data.valid": "toy:valid:20",
        "data.test": "",
        "data.vocab_size": "2000",
    }
    config = resolve(override(default_config(), data | keys))
    corpus = prepare_corpus(task_of(config), folder)
    draw = drawn_pairs(config, corpus.train, corpus.tokenizers)
    assert draw
    indices = np.arange(corpus.train.num_pairs)
    texts = [corpus.train.texts(i) for i in indices.tolist()]
    encode = corpus.tokenizers.source.encode_text

    def draw_pass(number: int) -> None:
        draw(Visits(indices, np.full_like(indices, number)))

    first = seconds(lambda: draw_pass(0), 1)
    numbers = iter(range(1, 1 + repeats))
    rest = seconds(lambda: draw_pass(next(numbers)), repeats)
    own = seconds(lambda: [(encode(source), encode(target)) for source, target in texts], repeats)
    taken = {"first_pass": first, "later_pass": rest, "tokenized": own}
    return {name: round(1e6 * value / len(indices), 1) for name, value in taken.items()} | {
        "tokens": round(float(corpus.train.mean_length), 1)
    }


def train(keys: dict[str, str], updates: int, folder: Path, workdir: Path) -> dict[str, Any]:
    """Seconds until the first update and the end of a training on the text in `folder`, and target tokens/s in its parts."""
    texts = {name: f"{folder}/{name}.en,{folder}/{name}.de" for name in SHARES}
    flags = {
        "data.train": "; ".join(f"{name}={text}" for name, text in texts.items()), "data.valid": "", "data.test": "",
        "data.cache": f"{folder}/cache", "train.steps": str(updates), "log.every_steps": str(updates // 4),
        "eval.every_steps": "0", "checkpoint.average_last": "0",
    } | keys  # fmt: skip
    command = [sys.executable, "-m", "t2t_flax", "train", "--config=configs/text.py", f"--workdir={workdir}"]
    began = time.perf_counter()
    done = subprocess.run(
        [*command, *(f"--config.{key}={value}" for key, value in flags.items())],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    seconds = time.perf_counter() - began
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    first = re.search(r"first update ([\d.]+) s", done.stdout)
    assert first
    return {
        "seconds_to_first_update": float(first[1]),
        "seconds": round(seconds, 1),
        "target_tokens_per_second": [
            round(line["target_tokens_per_second"]) for line in lines if "target_tokens_per_second" in line
        ],
    }


def train_in_turns(updates: int, rounds: int, pairs: int, data: str) -> dict[str, Any]:
    """The trainings of each round, by name."""
    shares = f"clean=3, web=1; {updates // 2}: clean=1, web=1"
    runs = {"plain": {}, "drawn mixture": MIXTURE | {"mixtures.shares": shares}}
    texts, results = real_pairs(Path(data)) if data else synthetic_pairs(), {name: [] for name in runs}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for source, share in SHARES.items():
            sides = zip(*itertools.islice(texts, round(share * pairs)), strict=True)
            for side, lines in zip(("en", "de"), sides, strict=True):
                (folder / f"{source}.{side}").write_text("".join(f"{line}\n" for line in lines))
        for number, (run, keys) in itertools.product(range(rounds), runs.items()):
            results[run].append(train(keys, updates, folder, folder / f"{run}{number}"))
            print(run, results[run][-1], flush=True)
    return {"keys": runs["drawn mixture"], "rounds": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, help="default: 20,000, with --train 200,000")
    parser.add_argument("--repeats", type=int, help="passes of 5, or rounds of 2 trainings")
    parser.add_argument("--train", type=int, metavar="UPDATES")
    parser.add_argument("--data", default=os.environ.get("T2T_FLAX_DATA", ""), metavar="DIR", help="holds multi30k/")
    parser.add_argument("--out", help="file of the record")
    args = parser.parse_args()
    if args.train:
        what = "training on a filtered mixture of drawn pairs, in turns with one on the plain text"
        result = train_in_turns(args.train, args.repeats or 2, args.pairs or 200_000, args.data)
        command = command_of("drawing", sys.argv[1:])
        return publish({"what": what, "command": command, "machine": machine(), **result}, args.out)
    with tempfile.TemporaryDirectory() as folder:
        rows = {
            name: measure(keys, args.pairs or 20_000, args.repeats or 5, Path(folder) / str(number))
            for number, (name, keys) in enumerate(KEYS.items())
        }
    record = {
        "what": "microseconds of one core for a pair that is drawn, beside its tokenization (both sides)",
        "command": command_of("drawing", sys.argv[1:]),
        "machine": machine(),
        "microseconds_a_pair": rows,
    }
    publish(record, args.out)


if __name__ == "__main__":
    main()
