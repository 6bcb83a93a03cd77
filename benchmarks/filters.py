"""Pairs a second of each filter of training pairs and of each table format, on one core.

    python -m benchmarks.filters --pairs=train.en,train.de --held-out=valid.en,valid.de

The tables hold the pairs with a made-up score; a filter sees all pairs. The memory of `duplicates`
is measured with made-up pairs: one in twenty repeats another one.
"""

import argparse
import concurrent.futures
import gzip
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import command_of, machine, publish
from t2t_flax.config import default_config, override, resolve
from t2t_flax.data.preprocess import CHUNK_PAIRS, Pair
from t2t_flax.data.sources import Source, open_source
from t2t_flax.extensions.corpora.duplicates import Duplicates
from t2t_flax.extensions.corpora.filters import FiltersHook
from t2t_flax.extensions.corpora.rules import Rule

KEYS = {
    "length_ratio": "3",
    "copies": "True",
    "held_out": "either",
    "language": "0.95",
}


class Repeating(Source):
    """`count` made-up pairs of about 110 characters; one in twenty repeats another one."""

    def read(self):
        for i in range(self.count or 0):
            n = i // 2 if i % 20 == 7 else i
            yield (
                f"a made-up sentence with the number {n:012d} in it",
                f"ein erfundener Satz mit der Nummer {n:012d} darin, {n}",
            )

    def fingerprint(self):
        return self.spec


def peak_memory() -> int:
    """Return the largest memory of this process, in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(
        next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    )


def find_duplicates(count: int) -> dict[str, float]:
    """Return pairs a second, and the growth of this process's memory."""
    before, start = peak_memory(), time.perf_counter()
    (marks,) = Duplicates().marks([Repeating(f"repeating {count}", count)])
    seconds = time.perf_counter() - start
    return {
        "pairs": count,
        "dropped": int(marks.sum()),
        "pairs_a_second": round(count / seconds),
        "memory_mb": round((peak_memory() - before) / 1e6),
    }


def rate(work: Callable[[], int], repeats: int) -> int:
    """Return the median of items a second; `work` returns their number."""
    rates = []
    for _ in range(repeats):
        start = time.perf_counter()
        rates.append(work() / (time.perf_counter() - start))
    return round(statistics.median(rates))


def of_rule(rule: Rule, pairs: Sequence[Pair]) -> tuple[Callable[[], int], int]:
    """Return (a function that applies it to all pairs by chunks, number of pairs that it drops)."""
    chunks = [pairs[i : i + CHUNK_PAIRS] for i in range(0, len(pairs), CHUNK_PAIRS)]

    def work() -> int:
        return sum(len(rule.drops(chunk)) for chunk in chunks)

    return work, sum(sum(rule.drops(chunk)) for chunk in chunks)


def write_tables(folder: Path, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return a spec for each form."""
    import pyarrow
    import pyarrow.parquet

    rows = [{"en": s, "de": t, "score": i % 1000 / 1000} for i, (s, t) in enumerate(pairs)]
    lines = "".join(f"http://a.org\t{row['score']}\t{row['en']}\t{row['de']}\n" for row in rows)
    (folder / "t.tsv").write_text(lines)
    (folder / "t.tsv.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "t.parquet")
    by_name = "en,de:score>=0.3"
    return {
        name: f"{name}:{'3,4:2>=0.3' if 'tsv' in name else by_name}"
        for name in sorted(p.name for p in folder.iterdir())
    }


def of_table(spec: str, root: str, languages: dict[str, str]) -> Callable[[], int]:
    """Read a table."""
    table = open_source(spec, root=root, **languages)
    return lambda: sum(1 for _ in table.rows())


def main(argv: Sequence[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", required=True, metavar="SRC,TGT")
    parser.add_argument("--held-out", required=True, metavar="SRC,TGT")
    parser.add_argument("--languages", default="en,de")
    parser.add_argument(
        "--duplicates", type=int, nargs="*", default=[1_000_000, 10_000_000], metavar="PAIRS"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out")
    args = parser.parse_args(argv)

    source, target = args.languages.split(",")
    languages = {"source_language": source, "target_language": target}
    texts = list(open_source(args.pairs, **languages).pairs())
    pairs = [Pair(s, t, s.split(), t.split(), 0) for s, t in texts]  # type: ignore[arg-type]  # as many ids as words
    keys = {f"filters.{key}": value for key, value in KEYS.items()}
    keys |= {"data.train": args.pairs, "data.valid": args.held_out} | {
        f"data.{k}": v for k, v in languages.items()
    }
    rules = FiltersHook(resolve(override(default_config(), keys))).filters()
    record: dict[str, Any] = {
        "what": "pairs a second on one core",
        "command": command_of("filters", argv),
        "machine": machine(),
        "pairs": len(texts),
        "filters": {},
        "tables": {},
    }
    for rule in rules:
        work, dropped = of_rule(rule, pairs)
        once = 1 if rule.reason == "language" else args.repeats
        record["filters"][rule.reason] = {"pairs_a_second": rate(work, once), "dropped": dropped}
    with tempfile.TemporaryDirectory() as folder:
        for name, spec in write_tables(Path(folder), texts).items():
            record["tables"][name] = {
                "pairs_a_second": rate(of_table(spec, folder, languages), args.repeats)
            }
    spawn = multiprocessing.get_context("spawn")
    record["duplicates"] = []
    for count in args.duplicates:
        with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
            record["duplicates"].append(pool.submit(find_duplicates, count).result())
    publish(record, args.out)
    return record


if __name__ == "__main__":
    main(sys.argv[1:])
