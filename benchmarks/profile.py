"""Profile a train step and a beam search on one core: time and GFLOP/s by group of operations.

    python -m benchmarks.profile --out=benchmarks/results/profile.json

JAX's profiler measures a batch of `benchmarks.training`, or sentences of `benchmarks.decoding`, of
middle length, a few times; the fastest repetition of each instruction counts. XLA fuses operations:
a fusion counts to the first group of `group_of` that it fits.
"""

import argparse
import collections
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.decoding import write_model
from benchmarks.environments import Environments, Unavailable
from benchmarks.models import SIZES, save_batches, training_batches
from benchmarks.record import command_of, machine, publish
from benchmarks.rounds import Engine, run

PARTS = (
    "training_tiny",
    "training_base",
    "training_base_bfloat16",
    "decoding_tiny",
    "decoding_base",
    "decoding_base_bfloat16",
    "decoding_toy",
)
SENTENCES, BEAM = 32, 4
PRODUCTS, REST = "matrix products", "between operations: XLA's scheduler, Python"
_MOVES = {
    "bitcast",
    "copy",
    "transpose",
    "reshape",
    "slice",
    "concatenate",
    "pad",
    "broadcast",
    "convert",
}
_MOVES |= {"parameter", "constant", "tuple", "get-tuple-element", "fusion"}


def group_of(instruction: dict[str, Any], table_rows: int) -> tuple[str, str]:
    """Return an instruction's (group of operations, multiplied matrices if it is a product).

    The instruction comes from `engines.ours_profile`.
    """
    name, opcodes, sizes = instruction["op_name"], set(instruction["opcodes"]), instruction["sizes"]
    if product := instruction["product"]:
        batch, rows, contracted, _ = product
        backward = "transpose(" in name or table_rows in (contracted, rows)
        direction = "" if "jvp" not in name else ", backward" if backward else ", forward"
        if table_rows in product:
            return PRODUCTS, "logits" + direction
        if ".attend" in name or batch > 1:
            return PRODUCTS, "attention: scores, weighted values"
        return (
            PRODUCTS,
            ("feed-forward" if "feed_forward" in name else "projections of attention") + direction,
        )
    if opcodes & {"xor", "rng-bit-generator"}:
        return "dropout bits and their masks", ""
    if opcodes & {"gather", "scatter"} and table_rows in sizes:
        return "tables: lookups and their gradient", ""
    if "top_k" in name or "sort" in opcodes:
        return "top-k", ""
    in_model = "Transformer" in name or "jvp" in name
    if (
        table_rows in sizes
        and (in_model or not name.startswith("jit(step)"))
        or "logsumexp" in name
    ):
        return "softmax, loss", ""
    if ".attend" in name:
        return "attention: softmax, masks, layouts", ""
    if opcodes & {"dynamic-update-slice", "gather"}:
        return "cache and beams: writes, reordering", ""
    if "norm" in name.split("/"):
        return "layer norm", ""
    if name.startswith("jit(step)/") and not in_model:
        return "optimizer", ""
    if opcodes <= _MOVES:
        return ("conversions of type" if "convert" in opcodes else "copies and layouts"), ""
    return "other elementwise", ""


def task_of(
    part: str, folder: Path, repeats: int, environments: Environments
) -> tuple[dict[str, Any], str]:
    """Return (the task of `engines.ours_profile`, a description of it)."""
    kind, name, *precision = part.split("_")
    size = SIZES["tiny" if name == "toy" else name]
    task = {
        "kind": kind,
        "size": size,
        "repeats": repeats,
        "threads": 1,
        "compile_cache": "",
        "folder": str(folder),
    }
    task["precision"] = precision[0] if precision else "float32"
    if kind == "training":
        batches = training_batches(size, 3)[1:2]
        save_batches(folder / "batches.npz", batches)
        [(source, target)] = batches
        shapes = (
            f"sources {len(source)} x {source.shape[1]}, targets {len(target)} x {target.shape[1]}"
        )
        return task | {"batches": str(folder / "batches.npz")}, shapes
    task |= {"batch_size": SENTENCES, "beam_size": BEAM, "alpha": 0.6}
    groups = write_model(
        task, name, "pretrained:toy" if name == "toy" else None, None, environments
    )
    group = groups[len(groups) // 2]
    sources = group["sources"][:SENTENCES]
    what = (
        f"{len(sources)} sentences of up to {max(map(len, sources))} tokens, beam {BEAM}, at most"
        f" {group['cap']} tokens"
    )
    return task | {"groups": [group | {"sources": sources}]}, what


def summary(result: dict[str, Any], what: str) -> dict[str, Any]:
    """Return a part's entry in the record: shares of the time by group and by kind of product."""
    shares: collections.Counter = collections.Counter()
    products = collections.defaultdict(
        lambda: {"seconds": 0.0, "flops": 0.0, "shapes": collections.Counter()}
    )
    slowest = sorted(result["instructions"], key=lambda each: -each["seconds"])
    whole = result["seconds"]
    shares[REST] = max(0.0, whole - sum(each["seconds"] for each in slowest))
    for each in slowest:
        group, kind = group_of(each, result["table_rows"])
        shares[group] += each["seconds"]
        if kind:
            batch, rows, contracted, columns = each["product"]
            products[kind]["seconds"] += each["seconds"]
            products[kind]["flops"] += 2.0 * batch * rows * contracted * columns * each["times"]
            products[kind]["shapes"]["x".join(map(str, each["product"]))] += each["seconds"]
    flops = sum(entry["flops"] for entry in products.values())
    return {
        "what": what,
        "seconds": _three(whole),
        "shares": {name: round(seconds / whole, 4) for name, seconds in shares.most_common()},
        "products": {
            kind: {
                "share": round(entry["seconds"] / whole, 4),
                "gflops": _three(entry["flops"] / entry["seconds"] / 1e9),
                "shapes": {
                    shape: round(seconds / whole, 4)
                    for shape, seconds in entry["shapes"].most_common(3)
                },
            }
            for kind, entry in sorted(products.items(), key=lambda item: -item[1]["seconds"])
        },
        "gflops_of_products": _three(flops / shares[PRODUCTS] / 1e9),
        "peak_gflops_of_float32": _three(result["peak_gflops"]),
        "slowest": [
            {
                "share": round(each["seconds"] / whole, 4),
                "times": each["times"],
                "op_name": each["op_name"],
            }
            for each in slowest[:10]
        ],
        "settings": result["settings"],
        "versions": result["versions"],
    }


def _three(value: float) -> float:
    return float(f"{value:.3g}")


def main(argv: list[str]) -> None:
    """Measure the parts and write the record."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated (default: all)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--out", metavar="FILE.json", help="where to write the record (default: print it)"
    )
    args = parser.parse_args(argv)
    environments, parts = Environments("", install=False), {}
    for part in args.parts.split(","):
        before = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as folder:
            task, what = task_of(part, Path(folder), args.repeats, environments)
            try:
                result = run(Engine(part, "ours_profile", timeout=3600.0), task, environments)
            except Unavailable as error:
                sys.exit(f"{part} failed: {error}")
        parts[part] = summary(result, what) | {
            "load": [round(x, 1) for x in (before, os.getloadavg()[0])]
        }
    record = {
        "what": "shares of the time of a train step and of a beam search on one core",
        "command": command_of("profile", argv),
        "parts": parts,
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main(sys.argv[1:])
