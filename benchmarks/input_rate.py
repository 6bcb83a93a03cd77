"""What one core delivers to a pod, and what a start costs however large the corpus is.

    python -m benchmarks.input_rate --out=benchmarks/results/input_rate.json
    python -m benchmarks.input_rate --pairs=1000000,10000000,100000000 --out=...    # needs 2.4 GB of disk

Tokenizing and batch making are measured in CPU time of one thread. The corpora are synthetic, except for tokenizing: lengths
and offsets are real files, the ids a sparse file of zeros. Every start is a process of its own, its files dropped from the page
cache first.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np

from benchmarks.record import machine, publish
from t2t_flax.config import Config, Data, Model
from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.batching.packing import first_fit
from t2t_flax.data.encoding import Policies
from t2t_flax.data.preprocess import prepare_split
from t2t_flax.data.sources import open_source, toy
from t2t_flax.data.store.token_store import FILES, FORMAT_VERSION, TokenStore
from t2t_flax.data.tokenizers import train_tokenizers
from t2t_flax.extensions.planning.chips import DATA_SHEET_TFLOPS
from t2t_flax.extensions.planning.flops import padded_tokens, training_products
from t2t_flax.training.model_summary import abstract_state

CHUNK = 1_000_000


def write_synthetic(folder: Path, pairs: int) -> None:
    """A store of `pairs` pairs, log-normal lengths of 26 tokens on average, both sides alike; ids are a sparse file."""
    folder.mkdir(parents=True)
    totals, longest = {"source": 0, "target": 0}, {"source": 0, "target": 0}
    files = {(s, p): open(folder / f"{s}.{p}", "wb") for s in totals for p in ("lengths", "offsets", "ids")}
    for start in range(0, pairs, CHUNK):
        rng, count = np.random.default_rng(start), min(CHUNK, pairs - start)
        source = np.clip(rng.lognormal(3.1, 0.6, count), 2, 250)
        for side, lengths in (("source", source), ("target", np.clip(source * rng.normal(1, 0.15, count), 2, 250))):
            lengths = lengths.astype("<i4")
            ends = totals[side] + np.cumsum(lengths, dtype=np.int64)
            files[side, "lengths"].write(lengths.tobytes())
            files[side, "offsets"].write((ends - lengths).astype("<i8").tobytes())
            totals[side], longest[side] = int(ends[-1]), max(longest[side], int(lengths.max()))
    for side, total in totals.items():
        files[side, "ids"].truncate(2 * total)
    for file in files.values():
        file.flush()
        os.fsync(file.fileno())  # only clean pages can be dropped from the cache
        file.close()
    sides = {
        side: {"tokens": total, "longest": longest[side], "dtype": "uint16", "vocab_size": 1 << 16}
        for side, total in totals.items()
    }
    checksums = {name: zlib.crc32(np.memmap(folder / name, np.uint8, "r")) for name in FILES}
    meta = {
        "format_version": FORMAT_VERSION,
        "pairs": pairs,
        **sides,
        "crc32": checksums,
        "digest": f"synthetic-{pairs}",
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    TokenStore.open(folder)  # verifies it, which only the first to open a store does


def start(folder: Path, tokens: int) -> dict[str, float]:
    """Seconds and memory (MB) of opening a store and making the first batch, in this process."""
    before, times = memory(), {}
    began = last = time.perf_counter()

    def mark(name: str) -> None:
        nonlocal last
        now = time.perf_counter()
        times[name], last = round(now - last, 3), now

    store = TokenStore.open(folder)
    mark("open_s")
    batches = Batches(store, Data(batch_tokens=tokens), seed=0, shards=8)
    mark("plan_s")
    batch = batches.batch(0)
    batch.rows(0, batch.shape.rows // 8)
    mark("first_batch_s")
    after = memory()
    peak = int(next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM")).split()[1])
    grown = {f"{kind}_mb": round(after[kind] - before[kind], 1) for kind in after}
    grown["peak_resident_mb"] = round(peak / 1024, 1)
    return times | {"total_s": round(time.perf_counter() - began, 3)} | grown


def memory() -> dict[str, float]:
    """Resident memory of this process in MB: its own (anonymous), and pages of mapped files, which the system may drop."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines if line.startswith("Rss")}
    return {"own": found["RssAnon"], "mapped": found["RssFile"]}


def drop_cache(folder: Path) -> None:
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def starts(sizes: list[int], tokens: int) -> list[dict]:
    """First and later start of a corpus of each size."""
    rows = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as name:
        for pairs in sizes:
            folder = Path(name) / str(pairs)
            write_synthetic(folder, pairs)
            row = {"pairs": pairs, "index_mb": round(24 * pairs / 1e6, 1)}
            for which in ("first", "later"):  # the first counts the updates of every window, and writes them down
                drop_cache(folder)
                command = [sys.executable, "-m", "benchmarks.input_rate", f"--start={folder}", f"--tokens={tokens}"]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                row[which] = json.loads(done.stdout)
            for path in folder.iterdir():
                path.unlink()
            rows.append(row)
            print(row, flush=True)
    return rows


def preparation() -> dict:
    """Tokens per second of one core from text to store."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pairs = list(toy.pairs("train", 40_000))
        for n, side in enumerate(("en", "de")):
            (folder / side).write_text("".join(pair[n] + "\n" for pair in pairs))
        source = open_source("en,de", root=name, source_language="en", target_language="de")
        tokenizers = train_tokenizers(source, Data(tokenizer="bpe", vocab_size=8000, joint_vocabulary=True))
        began = time.process_time()
        policies = Policies(max_length=256, on_too_long="drop", empty_lines="drop")
        store = prepare_split(source, tokenizers, folder / "store", policies, num_workers=1)
        seconds = time.process_time() - began
        tokens = sum(store.meta[side]["tokens"] for side in ("source", "target"))
        return {
            "text": "built-in corpus, joint BPE of 8000",
            "pairs": store.num_pairs,
            "tokens_per_second": round(tokens / seconds),
            "pairs_per_second": round(store.num_pairs / seconds),
        }


def batch_making(tokens: int, pairs: int, shares: tuple[int, ...]) -> dict:
    """Target tokens per second of one core: a whole window, its cutting included, when a host makes 1 / shares of the rows."""
    with tempfile.TemporaryDirectory() as name:
        write_synthetic(Path(name) / "store", pairs)
        store = TokenStore.open(Path(name) / "store")
        out = {"batch_tokens": tokens, "hosts": {}}
        for hosts in shares:
            batches = Batches(store, Data(batch_tokens=tokens), seed=hosts, shards=shares[-1])
            first = batches.updates_per_epoch  # the windows before it were looked at to find the shapes
            count = round(float(np.mean(batches.stream.sampler.counts)))
            target, slots, filling, began = 0, 0, 0.0, time.process_time()
            for k in range(first, first + count):
                batch = batches.batch(k)
                at = time.process_time()
                arrays = batch.rows(0, batch.shape.rows // hosts)
                filling += time.process_time() - at
                target += batch.target_tokens
                slots += arrays["source"].size + arrays["target"].size
            seconds = time.process_time() - began
            out["shape"], out["fill"] = str(batch.shape), round(batch.fill, 4)
            out["hosts"][f"1 of {hosts}"] = {
                "target_tokens_per_second_of_the_whole_batch": round(target / seconds),
                "id_slots_filled_per_second": round(slots / filling),
                "seconds_per_update": round(seconds / count, 5),
                "of_which_filling": round(filling / count, 5),
            }
        lengths = [x[batch.pairs] for x in store.lengths]
        began = time.process_time()
        first_fit(*lengths, 256)
        out["rows_found_target_tokens_per_second"] = round(batch.target_tokens / (time.process_time() - began))
        return out


def need(chip: str, chips: int, mfu: float, model: Model, vocab: int, length: int = 27) -> dict:
    """Target tokens/s that a pod takes at a share of its data-sheet peak: by formula, not measured."""
    config = Config(model=model)
    products = training_products(config, vocab, abstract_state(config, (vocab, vocab)).params)
    per_token = products.flops(model, padded_tokens(1, length)) / length
    rate = chips * mfu * DATA_SHEET_TFLOPS[chip] * 1e12 / per_token
    return {
        "formula": "chips * MFU * peak / (3 * forward FLOPs per target token)",
        "chip": chip, "chips": chips, "mfu": mfu, "pairs_of": [length, length],
        "flops_per_target_token": round(per_token), "target_tokens_per_second": round(rate),
    }  # fmt: skip


def main() -> None:
    """Measures, and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", default="1000000,10000000", help="sizes of the synthetic corpora, comma-separated")
    parser.add_argument("--tokens", type=int, default=25_000, help="tokens of an update for the starts")
    parser.add_argument("--start", help=argparse.SUPPRESS)
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.start:
        print(json.dumps(start(Path(args.start), args.tokens)))
        return
    base, big = Model(), Model(d_model=1024, d_ff=4096, num_heads=16)
    machines = {"8 v5e": ("TPU v5e", 8), "256 v5e": ("TPU v5e", 256), "8 H200": ("NVIDIA H200", 8)}
    needs = {
        f"{name} on {machine} at 40 % MFU": need(chip, chips, 0.4, model, 37000)
        for name, model in (("base", base), ("big", big))
        for machine, (chip, chips) in machines.items()
    }
    made = [batch_making(tokens, 2_000_000, (1, 8, 32)) for tokens in (25_000, 200_000, 1_000_000)]
    record = {
        "what": "tokens per second of one core from text to store and from store to batches; what a start costs",
        "command": f"python -m benchmarks.input_rate --pairs={args.pairs} --tokens={args.tokens}",
        "preparation_of_one_core": preparation(),
        "batches_of_one_core": made,
        "need_by_formula": needs,
        "starts_are": "a process each, cold file cache; first = counts the updates of all windows and keeps them beside the "
        "store (`prepare` does it), later = finds them. Memory is what opening and batching added; mapped pages are the "
        "file cache's. The peak is of the whole process; what a window maps at once is bounded by a page for each length "
        "that it reads, 2 sides * 65536 pairs * 4 kB, whatever the corpus.",
        "starts": starts([int(n) for n in args.pairs.split(",")], args.tokens),
        "versions": {"numpy": np.__version__, "python": platform.python_version()},
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main()
