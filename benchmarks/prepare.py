"""Wall time, CPU time and memory of preparing a corpus, by phase; core-hours of 36 million pairs.

    python -m benchmarks.prepare --pairs=1000000 --out=benchmarks/results/prepare.json

Synthetic pairs: words by a Zipf law. Real pairs, with --data or T2T_FLAX_DATA: Multi30k, each time
with the words turned round by one more. Each corpus has a new process, with configs/text.py and a
vocabulary of 16,000; overrides may be given.
"""

import argparse
import contextlib
import gzip
import itertools
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.record import command_of, machine, publish
from t2t_flax.config import load_config
from t2t_flax.data import preprocess
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.workers import num_cores
from t2t_flax.tasks import task_of

PHASES = {
    "hash the files": "hash",
    "sample sentences": "sample",
    "train the tokenizer": "tokenizer",
    "tokenise train": "encode",
    "plan the updates": "plan",
}
"""Short names of stages; others, such as filters, keep their names."""
WMT_PAIRS = 36_000_000
"""English-French, section 5.1."""
_BLOCK = 10_000
_WORDS = 50_000


def synthetic_pairs() -> Iterator[tuple[str, str]]:
    """Endless; sides of 1 to some 60 words, about 22 in the mean."""
    letters = np.frombuffer(b"etaoinshrdlucmfwypvbgkjqxz", "S1").astype("U1")
    share = 1 / (np.arange(_WORDS) + 2.7)
    below = np.cumsum(share / share.sum())
    rng = np.random.default_rng(0)
    words = [
        np.array(
            ["".join(letters[rng.zipf(1.4, 2 + i.bit_length() // 2) % 26]) for i in range(_WORDS)],
            object,
        )
        for _ in range(2)
    ]
    for block in itertools.count():
        rng = np.random.default_rng(block)
        ends = np.cumsum(1 + rng.poisson(rng.gamma(4, 5.25, _BLOCK)))
        ranks = np.searchsorted(below, rng.random(ends[-1]))
        sides = [words[side][ranks].tolist() for side in (0, 1)]
        for start, end in itertools.pairwise([0, *ends.tolist()]):
            yield " ".join(sides[0][start:end]), " ".join(sides[1][start:end][::-1])


def real_pairs(data: Path) -> Iterator[tuple[str, str]]:
    """Endless."""
    texts = [
        gzip.open(data / "multi30k" / "raw" / f"train.{code}.gz", "rt").read().splitlines()
        for code in ("en", "de")
    ]
    for turn in itertools.count():
        for pair in zip(*texts, strict=True):
            sides = (text.split() for text in pair)
            yield tuple(
                " ".join(words[turn % len(words) :] + words[: turn % len(words)]) for words in sides
            )  # type: ignore[misc]


class Phases:
    """`Report` that measures each phase.

    It records its seconds, the CPU time of this process, alone and with its children, and their
    largest resident memory.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.own_cpu: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self.bytes: dict[str, int] = {}
        self._phase, self._end = "open", threading.Event()
        self._began = _clocks()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def __call__(self, stage: str, done: int, total: int | None, unit: str) -> None:
        if (phase := PHASES.get(stage, stage)) != self._phase:
            self.begin(phase)

    def begin(self, phase: str) -> None:
        now = _clocks()
        for of_phase, before, after in zip(
            (self.seconds, self.own_cpu, self.cpu), self._began, now, strict=True
        ):
            of_phase[self._phase] = of_phase.get(self._phase, 0.0) + after - before
        self._phase, self._began = phase, now

    def close(self) -> None:
        self.begin("")
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.1):
            used = sum(of_processes(lambda process: process.memory_info().rss))
            self.bytes[self._phase] = max(self.bytes.get(self._phase, 0), used)


def _clocks() -> tuple[float, float, float]:
    """Return (wall time, CPU seconds of this process, the same with its children).

    Children that have ended count.
    """
    own = time.process_time()
    ended = psutil.Process().cpu_times()
    children = of_processes(lambda process: sum(process.cpu_times()[:2]))[1:]
    return (
        time.perf_counter(),
        own,
        own + ended.children_user + ended.children_system + sum(children),
    )


def of_processes(value: Callable[[psutil.Process], float]) -> list[float]:
    """Return the values of this process and its children."""
    values, own = [], psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            values.append(value(process))
    return values


def measure(
    make_pairs: Callable[..., Iterator[tuple[str, str]]],
    arguments: Sequence[Any],
    count: int,
    overrides: dict[str, str],
) -> dict[str, Any]:
    """Prepare the first `count` pairs, written to files, in a new folder.

    Memory is resident, the sum over its processes.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with open(folder / "train.en", "w") as source, open(folder / "train.de", "w") as target:
            for one, other in itertools.islice(make_pairs(*arguments), count):
                source.write(one + "\n")
                target.write(other + "\n")
        size = sum(path.stat().st_size for path in folder.iterdir())
        of_data = {
            "train": f"{folder}/train.en,{folder}/train.de",
            "valid": "",
            "test": "",
            "vocab_size": "16000",
        }
        config = load_config(
            "configs/text.py", {f"data.{key}": value for key, value in of_data.items()} | overrides
        )
        preprocess.INLINE_PAIRS = 0  # as in a large corpus, this process only reads and writes
        phases = Phases()
        corpus = prepare_corpus(task_of(config), folder / "run", phases)
        phases.begin("second start")
        prepare_corpus(task_of(config), folder / "run")
        phases.close()
        cores = config.data.num_workers or num_cores()
        fixed = phases.cpu["tokenizer"]  # of a sample
        growing = sum(phases.cpu.values()) - fixed
        return {
            "pairs": count,
            "megabytes": round(size / 1e6, 1),
            "tokens_of_a_pair": round(float(np.mean(sum(corpus.train.lengths))), 1),
            "workers": cores,
            "seconds": {phase: round(value, 2) for phase, value in phases.seconds.items()},
            "peak_megabytes": {
                phase: round(value / 1e6) for phase, value in phases.bytes.items() if phase
            },
            "cpu_seconds": {phase: round(value, 2) for phase, value in phases.cpu.items()},
            "pairs_per_second_of_the_reader": round(count / phases.own_cpu["encode"]),
            "pairs_per_second_and_core": round(count / phases.cpu["encode"]),
            "core_hours_of_36M_pairs": round((fixed + WMT_PAIRS / count * growing) / 3600, 1),
        }


def main(argv: list[str]) -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.prepare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pairs", type=int, default=1_000_000, help="synthetic ones")
    parser.add_argument("--real-pairs", type=int, default=1_000_000)
    parser.add_argument(
        "--data", default=os.environ.get("T2T_FLAX_DATA", ""), metavar="DIR", help="holds multi30k/"
    )
    parser.add_argument(
        "--out", metavar="FILE.json", help="where to write the record (default: print it)"
    )
    args, rest = parser.parse_known_args(argv)
    if unknown := [word for word in rest if not word.startswith("--config.") or "=" not in word]:
        parser.error(f"unknown arguments: {' '.join(unknown)}")
    overrides = dict(word.removeprefix("--config.").split("=", 1) for word in rest)
    corpora: dict[str, tuple[Any, ...]] = {"synthetic": (synthetic_pairs, (), args.pairs)}
    if args.data:
        corpora["real"] = real_pairs, (Path(args.data),), args.real_pairs
    results = {}
    for name, of_corpus in corpora.items():
        with ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn")
        ) as alone:  # none starts with another's memory
            results[name] = alone.submit(measure, *of_corpus, overrides).result()
    what = "seconds, CPU seconds and peak memory of preparing a corpus by phase"
    publish(
        {"what": what, "command": command_of("prepare", argv), **results, "machine": machine()},
        args.out,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
