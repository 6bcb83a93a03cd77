"""Time that a device waits for batches, and the cost of a batch.

    python -m benchmarks.input_rate --out=benchmarks/results/input_rate.json --beside=OTHER_CHECKOUT

The consumer sleeps for the time of an update, as a device would compute, then takes the next batch;
each row runs in its own process. The corpora are synthetic: lengths as in WMT and in Multi30k,
random ids. Layout and filling are CPU time of one core; tokens/s a core, and the number of cores
needed, follow from them. With --beside, the layout of an update is also measured in another
checkout of this repository, in turn with this one.
"""

import argparse
import gc
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.record import command_of, machine, publish
from t2t_flax.config import Data
from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.token_store import StoreWriter, TokenStore
from t2t_flax.data.workers import num_cores
from t2t_flax.training.prefetcher import Prefetcher, put_batch

VOCABULARY, CHUNK = 37_000, 100_000
LENGTHS = {"wmt": (3.1, 0.6), "multi30k": (2.65, 0.3)}
"""Mean and deviation of the logarithm of a sentence's tokens: 27 and 15 tokens on average."""


def write_corpus(folder: Path, kind: str, pairs: int, vocabulary: int = VOCABULARY) -> None:
    """Return a store of `pairs` pairs; the sides of a pair are about equally long."""
    with StoreWriter(folder, vocab_sizes=(vocabulary, vocabulary)) as writer:
        writer.meta["digest"] = f"{kind}-{pairs}"
        for start in range(0, pairs, CHUNK):
            rng, count = np.random.default_rng(start), min(CHUNK, pairs - start)
            source = np.clip(rng.lognormal(*LENGTHS[kind], count), 2, 250)
            target = np.clip(source * rng.normal(1, 0.15, count), 2, 250)
            sides = [x.astype(np.int32) for x in (source, target)]
            writer.write(*((rng.integers(4, vocabulary, int(x.sum()), np.int32), x) for x in sides))


def consume(
    folder: Path, tokens: int, step: float, seconds: float, processes: int
) -> dict[str, Any]:
    """Consume an update every `step` seconds, for `seconds` seconds, and measure the waits."""
    batches = Batches(
        TokenStore.open(folder), Data(batch_tokens=tokens, microbatch_tokens=0), seed=0
    )
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "fsdp"))
    waits, target = [], 0
    taken = None
    gc.set_threshold(100_000)  # as the command line does
    with Prefetcher(batches, mesh, 0, 1 << 40, processes) as prefetcher:
        prefetcher.next()
        time.sleep(2.0)  # compiling, in a run: the queue fills
        began = time.perf_counter()
        while time.perf_counter() - began < seconds or len(waits) < 10:
            del taken  # a trainer frees its arrays while the next update is computed
            at = time.perf_counter()
            taken = prefetcher.next()
            waits.append(time.perf_counter() - at)
            target += taken.host.target_tokens
            time.sleep(step)
        total = time.perf_counter() - began
    layout = layout_seconds(batches)
    filling, longest = filling_seconds(batches, mesh), sorted(waits)
    cost = layout + filling
    return {
        "batch_tokens": tokens,
        "step_ms": round(1e3 * step, 3),
        "updates": len(waits),
        "waited_ms": {
            "median": round(1e3 * statistics.median(waits), 3),
            "p99": round(1e3 * longest[int(0.99 * (len(longest) - 1))], 3),
            "worst": round(1e3 * longest[-1], 3),
        },
        "slow_down": round(sum(waits) / (total - sum(waits)), 4),
        "target_tokens_per_second": round(target / total),
        "load": round(os.getloadavg()[0], 1),
        "layout_ms": round(1e3 * layout, 3),
        "filling_ms": round(1e3 * filling, 3),
        "target_tokens_per_second_of_a_core": round(target / len(waits) / cost),
        "cores_needed": math.ceil(cost / step) + 1,
    }


def layout_seconds(batches: Batches) -> float:
    """Return the CPU seconds of a core to lay out an update, over an epoch of at most 500."""
    first = batches.updates_per_epoch
    last = first + min(500, first)
    began = time.thread_time()
    for number in range(first, last):
        batches.batch(number)
    return (time.thread_time() - began) / (last - first)


_LAYOUT = """
import json, sys, time
from t2t_flax.config import Data
from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.token_store import TokenStore

data = Data(batch_tokens=int(sys.argv[2]), microbatch_tokens=0)
batches = Batches(TokenStore.open(sys.argv[1]), data, seed=0)
first = batches.updates_per_epoch
last = first + min(500, first)
began = time.thread_time()
laid_out = [batches.batch(number) for number in range(first, last)]
seconds = time.thread_time() - began
fuller = [max(batch.source_tokens, batch.target_tokens) for batch in laid_out]
slots = sum(batch.shape.slots for batch in laid_out)
tokens, fill = sum(fuller) / len(fuller), sum(fuller) / slots
print(json.dumps({"ms": 1e3 * seconds / len(fuller), "tokens": tokens, "fill": fill}))
"""
"""Program that measures the layout of updates in any checkout of this repository."""


def beside(store: Path, tokens: int, checkout: Path, rounds: int) -> dict[str, Any]:
    """Measure the layout of an update here and in another checkout, in turn.

    Returns the CPU milliseconds for a million tokens of the fuller side, and how many times faster
    it is here in each round.
    """
    folders = {"here": Path.cwd(), "beside": checkout}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in folders}
    for _ in range(rounds):
        for name, folder in folders.items():
            command = [sys.executable, "-c", _LAYOUT, str(store), str(tokens)]
            environment = os.environ | {"PYTHONPATH": str(folder), "JAX_PLATFORMS": "cpu"}
            done = subprocess.run(
                command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            found[name].append(json.loads(done.stdout))
    costs = {
        name: [1e6 * each["ms"] / each["tokens"] for each in rows] for name, rows in found.items()
    }
    times = [there / here for here, there in zip(costs["here"], costs["beside"], strict=True)]
    medians = {name: round(statistics.median(values), 2) for name, values in costs.items()}
    return {
        "batch_tokens": tokens,
        "ms_for_a_million_tokens": medians,
        "fill": {name: round(rows[0]["fill"], 4) for name, rows in found.items()},
        "times_faster": {
            "median": round(statistics.median(times), 2),
            "least": round(min(times), 2),
            "most": round(max(times), 2),
        },
        "rounds": rounds,
    }


def filling_seconds(batches: Batches, mesh: jax.sharding.Mesh, count: int = 10) -> float:
    """Return the median CPU seconds of a core to fill the arrays of a batch that is laid out."""
    seconds = []
    for number in range(count):
        batch = batches.batch(number)
        began = time.thread_time()
        put_batch(batch, mesh)
        seconds.append(time.thread_time() - began)
    return statistics.median(seconds)


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()


def table(rows: list[dict[str, Any]]) -> str:
    """Return rows of Markdown."""
    lines = [
        (
            "| tokens an update | ms a step | waits: median, p99, worst ms | slow-down | layout +"
            " filling, ms of a core | cores needed |"
        ),
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        waited = ", ".join(f"{row['waited_ms'][name]:.1f}" for name in ("median", "p99", "worst"))
        lines.append(
            f"| {row['batch_tokens']:,} ({row['corpus']}) | {row['step_ms']:g} | {waited} |"
            f" {row['slow_down']:.1%} | {row['layout_ms']:.1f} + {row['filling_ms']:.1f} |"
            f" {row['cores_needed']} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measures, and writes the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=1_000_000, help="of each synthetic corpus")
    parser.add_argument(
        "--corpora", default="wmt", help=f"comma-separated, of {', '.join(LENGTHS)}"
    )
    parser.add_argument(
        "--tokens", default="25000,500000,2000000", help="of an update, comma-separated"
    )
    parser.add_argument(
        "--steps", default="5,9,25", help="milliseconds of an update, comma-separated"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of each row")
    parser.add_argument(
        "--processes", type=int, default=num_cores(), help="that lay out windows; 1: a thread"
    )
    parser.add_argument(
        "--beside", metavar="FOLDER", help="another checkout, whose layout is measured in turn"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of --beside")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.row:
        print(
            json.dumps(
                consume(
                    Path(args.row),
                    int(args.tokens),
                    float(args.steps),
                    args.seconds,
                    args.processes,
                )
            )
        )
        return
    rows, layouts = [], []
    with tempfile.TemporaryDirectory() as name:
        for kind in args.corpora.split(","):
            write_corpus(Path(name, kind), kind, args.pairs)
            for tokens in args.tokens.split(","):
                for step in args.steps.split(","):
                    more = [
                        f"--tokens={tokens}",
                        f"--steps={float(step) / 1e3}",
                        f"--seconds={args.seconds}",
                    ]
                    command = [
                        sys.executable,
                        "-m",
                        "benchmarks.input_rate",
                        f"--row={Path(name, kind)}",
                        *more,
                    ]
                    command.append(f"--processes={args.processes}")
                    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                    rows.append({"corpus": kind} | json.loads(done.stdout.splitlines()[-1]))
                    print(rows[-1], flush=True)
                if args.beside:
                    layouts.append(
                        {"corpus": kind}
                        | beside(Path(name, kind), int(tokens), Path(args.beside), args.rounds)
                    )
                    print(layouts[-1], flush=True)
    record = {
        "what": (
            "waits of a consumer that takes a batch after each step; CPU time of one core for an"
            " update's batch"
        ),
        "command": command_of("input_rate", sys.argv[1:]),
        "rows": rows,
        "layout_beside_another_commit": (
            layouts and {"commit": commit_of(Path(args.beside)), "rows": layouts}
        ),
        "versions": {
            "numpy": np.__version__,
            "jax": jax.__version__,
            "python": platform.python_version(),
        },
        "machine": machine(),
    }
    publish(record, args.out)
    print(table(rows))


if __name__ == "__main__":
    main()
