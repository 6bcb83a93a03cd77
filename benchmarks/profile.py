"""Where the time of a train step and of a beam search goes on a CPU: by group of operations, products with their GFLOP/s.

    python -m benchmarks.profile --out=benchmarks/results/profile.json
    python -m benchmarks.profile --parts=training_base --out=benchmarks/results/profile.json    (the others stay as they are)

Each part runs in its own process on one core, in which nothing overlaps: a batch of `benchmarks.training`, or sentences of
`benchmarks.decoding`, of middle length, several times under JAX's profiler. Of each execution of an instruction the CPU time
of the fastest repetition counts, so that shares hardly depend on what else the machine does. XLA fuses operations: a fusion
counts to the first group that one of its operations belongs to, in the order of `group_of`.
"""

import argparse
import collections
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.decoding import write_model
from benchmarks.environments import Environments, Unavailable
from benchmarks.models import SIZES, save_batches, training_batches
from benchmarks.record import machine, publish
from benchmarks.rounds import Engine, run

TOY = "pretrained:toy"
PARTS = ("training_tiny", "training_base", "decoding_tiny", "decoding_base", "decoding_toy")
FOR_TESTS = ("training_mini", "decoding_mini")
SENTENCES, BEAM = 32, 4
TIMEOUT = 3600.0
PRODUCTS = "matrix products"
REST = "between operations: XLA's scheduler, Python"
_MOVES = {
    "bitcast",
    "copy",
    "transpose",
    "reshape",
    "parameter",
    "slice",
    "concatenate",
    "pad",
    "constant",
    "broadcast",
}


def group_of(instruction: dict[str, Any], table_rows: int) -> tuple[str, str]:
    """(group of operations, for a product what it multiplies) of an instruction of `engines.ours_profile`."""
    name, opcodes, sizes = instruction["op_name"], set(instruction["opcodes"]), instruction["sizes"]
    attends = ".attend" in name
    if product := instruction["product"]:
        batch, rows, contracted, _ = product
        if table_rows in sizes:
            what = "logits"
        elif attends or batch > 1:
            what = "attention: scores, weighted values"
        else:
            what = "feed-forward" if "feed_forward" in name else "projections of attention"
        if what == "logits" and rows == table_rows:  # the table's gradient, summed over tokens
            return PRODUCTS, f"{what}, backward"
        if "jvp" not in name or batch > 1:
            return PRODUCTS, what
        backward = "transpose(" in name or contracted == table_rows
        return PRODUCTS, f"{what}, {'backward' if backward else 'forward'}"
    if "xor" in opcodes:
        return "dropout bits and their masks", ""
    if opcodes & {"gather", "scatter"} and table_rows in sizes:
        return "tables: lookups and their gradient", ""
    if "top_k" in name or "sort" in opcodes:
        return "top-k", ""
    if table_rows in sizes and not name.startswith("jit(step)/") or "logsumexp" in name:
        return "softmax, loss", ""
    of_logits = table_rows in sizes and "jvp" in name
    if of_logits or "Transformer" not in name and ("exponential" in opcodes or name.endswith("/reduce_max")):
        return "softmax, loss", ""
    if attends:
        return "attention: softmax, masks, layouts", ""
    if "dynamic-update-slice" in opcodes or "gather" in opcodes:
        return "cache and beams: writes, reordering", ""
    if "norm" in name.split("/"):
        return "layer norm", ""
    if name.startswith("jit(step)/") and "Transformer" not in name and "jvp" not in name:
        return "optimizer", ""
    return ("copies and layouts" if opcodes <= _MOVES else "other elementwise"), ""


def task_of(part: str, folder: Path, repeats: int, environments: Environments) -> tuple[dict[str, Any], str]:
    """(the task of `engines.ours_profile`, what it runs)."""
    kind, _, name = part.partition("_")
    size = SIZES["tiny" if name == "toy" else name]
    task = {
        "kind": kind,
        "size": size,
        "repeats": repeats,
        "threads": 1,
        "compile_cache": str(folder / "programs"),
        "folder": str(folder),
    }
    if kind == "training":
        batches = training_batches(size, 3)[1:2]
        save_batches(folder / "batches.npz", batches)
        [(source, target)] = batches
        shapes = f"sources {len(source)} x {source.shape[1]}, targets {len(target)} x {target.shape[1]}"
        return task | {"batches": str(folder / "batches.npz")}, shapes
    task |= {"batch_size": SENTENCES, "beam_size": BEAM, "alpha": 0.6}
    groups = write_model(task, name, TOY if name == "toy" else None, None, environments)
    group = groups[len(groups) // 2]
    sources = group["sources"][:SENTENCES]
    what = (
        f"{len(sources)} sentences of up to {max(map(len, sources))} tokens, beam {BEAM}, at most {group['cap']} tokens"
    )
    return task | {"groups": [group | {"sources": sources}]}, what


def summary(result: dict[str, Any], what: str, load: Iterable[float]) -> dict[str, Any]:
    """A part's entry in the record: shares of the time by group, and of the kinds of products with their GFLOP/s. load: the
    machine's, before and after.
    """
    shares, products = (
        collections.Counter(),
        collections.defaultdict(lambda: {"seconds": 0.0, "flops": 0.0, "shapes": {}}),
    )
    slowest = sorted(result["instructions"], key=lambda each: -each["seconds"])
    operations = sum(each["seconds"] for each in slowest)
    shares[REST] = max(0.0, result["untraced_cpu_seconds"] - operations)
    whole = operations + shares[REST]
    for each in slowest:
        group, kind = group_of(each, result["table_rows"])
        shares[group] += each["seconds"]
        if kind:
            entry, shape = products[kind], "x".join(map(str, each["product"]))
            entry["seconds"] += each["seconds"]
            entry["flops"] += each["flops"] * each["times"]
            entry["shapes"][shape] = entry["shapes"].get(shape, 0.0) + each["seconds"]
    flops = sum(entry["flops"] for entry in products.values())
    return {
        "what": what,
        "shares": {name: round(seconds / whole, 4) for name, seconds in shares.most_common()},
        "products": {
            kind: {
                "share": round(entry["seconds"] / whole, 4),
                "gflops": _three(entry["flops"] / entry["seconds"] / 1e9),
                "shapes": sorted(entry["shapes"], key=entry["shapes"].get, reverse=True)[:3],
            }
            for kind, entry in sorted(products.items(), key=lambda item: -item[1]["seconds"])
        },
        "gflops_of_products": _three(flops / shares[PRODUCTS] / 1e9),
        "gflops": _three(flops / whole / 1e9),
        "peak_gflops": _three(result["peak_gflops"]),
        "slowest": [
            {"share": round(each["seconds"] / whole, 4), "times": each["times"], "op_name": each["op_name"]}
            for each in slowest[:10]
        ],
        "executions": sum(each["times"] for each in slowest),
        "operations_seconds": _three(operations),
        "seconds": {name: _three(result[name]) for name in ("seconds", "cpu_seconds", "untraced_cpu_seconds")},
        "load": [round(x, 1) for x in load],
        "settings": result["settings"],
        "versions": result["versions"],
    }


def _three(value: float) -> float:
    return float(f"{value:.3g}")


def main(argv: list[str] | None = None) -> None:
    """Measures the parts and writes the record."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.profile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated (default: all)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", metavar="FILE.json", help="where to write the record (default: print it)")
    args = parser.parse_args(argv)
    names = args.parts.split(",")
    if unknown := sorted(set(names) - {*PARTS, *FOR_TESTS}):
        parser.error(f"unknown parts: {', '.join(unknown)}; known: {', '.join(PARTS)}")
    environments = Environments("", install=False)
    known = args.out and Path(args.out).exists()
    parts = json.loads(Path(args.out).read_text())["parts"] if known else {}
    for name in names:
        before = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as folder:
            task, what = task_of(name, Path(folder), args.repeats, environments)
            try:
                result = run(Engine(name, "ours_profile", timeout=TIMEOUT), task, environments)
            except Unavailable as error:
                sys.exit(f"{name} failed: {error}")
        parts[name] = summary(result, what, (before, os.getloadavg()[0]))
    record = {
        "what": "shares of the CPU time of a train step and of a beam search on one core",
        "command": f"python -m benchmarks.profile --repeats={args.repeats}",
        "parts": {name: parts[name] for name in (*PARTS, *FOR_TESTS) if name in parts},
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main(sys.argv[1:])
