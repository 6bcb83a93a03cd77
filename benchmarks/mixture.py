"""Seconds to the first update of a mixture of two sources, and the memory of 100 updates.

    python -m benchmarks.mixture --pairs=1000000,100000000 --out=benchmarks/results/mixture.json

One source has 1 % of the pairs, the other 99 %, at shares 1:9. Runs `train` with configs/toy.py, in
new workdirs, on token stores of random ids that replace a small prepared one: once with nothing
verified, planned, compiled or in the file cache, once with all of it, once with all but the file
cache. Needs 120 bytes of disk a pair (TMPDIR).
"""

import argparse
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.prepare import of_processes
from benchmarks.record import command_of, machine, publish
from benchmarks.start import seconds_until
from t2t_flax.config import load_config
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.token_store import VERIFIED, StoreWriter
from t2t_flax.tasks import task_of

KEYS = {
    "data.train": "small=toy:train:2000; large=toy:train:3000",
    "data.test": "",
    "mixtures.shares": "small=1, large=9",
    "train.steps": "100",
    "eval.every_steps": "0",
}
CACHED = "all verified and cached"
STARTS = "nothing verified or cached", CACHED, "verified, not in the file cache"
_CHUNK = 1_000_000


def write_store(folder: Path, pairs: int) -> Path:
    """Write a training store of `pairs` made-up pairs into the cache `folder`."""
    config = load_config("configs/toy.py", KEYS | {"data.cache": str(folder)})
    corpus = prepare_corpus(task_of(config), folder.with_name("prepared"))
    store, sizes = corpus.train.folder, corpus.tokenizers.vocab_sizes
    for plan in store.parent.glob(f"{store.name}.plan-*"):
        plan.unlink()
    longest, rng = config.data.max_length, np.random.default_rng(0)
    with StoreWriter(store, vocab_sizes=sizes) as writer:
        for start in range(0, pairs, _CHUNK):
            count = min(_CHUNK, pairs - start)
            source = rng.lognormal(np.log(22), 0.7, count)
            sides = (
                np.clip(x, 2, longest).astype(np.int32)
                for x in (source, source * rng.normal(1.05, 0.15, count))
            )
            writer.write(
                *(
                    (rng.integers(4, size, x.sum(), np.int32), x)
                    for size, x in zip(sizes, sides, strict=True)
                )
            )
        small = pairs // 100
        writer.meta |= {
            "digest": corpus.train.digest,
            "pairs_read": pairs,
            "pairs_of_sources": [small, pairs - small],
        }
    return store


def start(folder: Path, workdir: str) -> dict[str, float]:
    """Train with the cache in `folder`, and return its seconds and memory.

    Memory: the most of one process, and the most mapped files of one.
    """
    most, end = [0.0, 0.0], threading.Event()

    def watch() -> None:
        while not end.wait(0.1):
            for n, part in enumerate(("rss", "shared")):
                used = of_processes(
                    lambda process, part=part: getattr(process.memory_info(), part)
                )[1:]
                most[n] = max(most[n], *used, 0.0)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    command = [
        "train",
        "--config=configs/toy.py",
        f"--workdir={folder / workdir}",
        f"--config.data.cache={folder / 'cache'}",
    ]
    command += [f"--config.{key}={value}" for key, value in KEYS.items()]
    seconds = seconds_until(
        command, folder / "programs", lambda line: line.startswith("first update ")
    )
    end.set()
    thread.join()
    return {
        "seconds": round(seconds, 1),
        "megabytes": round(most[0] / 1e6),
        "megabytes_mapped": round(most[1] / 1e6),
    }


def measure(folder: Path, pairs: int) -> dict[str, Any]:
    """Return the starts, in order."""
    store, rows = write_store(folder / "cache", pairs), {}
    (store / VERIFIED).unlink(missing_ok=True)
    for number, name in enumerate(STARTS):
        if name != CACHED:
            for path in store.iterdir():
                forget(path)
        rows[name] = start(folder, f"run{number}")
        print(pairs, name, rows[name], flush=True)
    return {
        "pairs": pairs,
        "gigabytes": round(sum(path.stat().st_size for path in store.iterdir()) / 1e9, 1),
        **rows,
    }


def forget(path: Path) -> None:
    """Remove a file from the file cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main(argv: list[str]) -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.mixture",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pairs", default="1000000,100000000", help="of a corpus, comma-separated")
    parser.add_argument(
        "--out", metavar="FILE.json", help="where to write the record (default: print it)"
    )
    args = parser.parse_args(argv)
    rows = []
    for pairs in map(int, args.pairs.split(",")):
        with tempfile.TemporaryDirectory() as name:
            rows.append(measure(Path(name), pairs))
    what = (
        "seconds to the first update of a mixture at shares 1:9, and memory of its largest process"
    )
    publish(
        {"what": what, "command": command_of("mixture", argv), "rows": rows, "machine": machine()},
        args.out,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
