"""How often the self-test suspects devices that are right, and how near it comes to that.

    python -m benchmarks.selftest --starts=200 --minutes=60 --log=selftest.jsonl --out=benchmarks/results/selftest.json

Each start draws a config from a grid (mesh, precision, accumulation, packing, norms, sizes, dropout, optimizers), and tests
eight simulated devices. The log has a line for each start; the same command goes on after the last one.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import command_of, machine, publish

MESHES = ((8, 1, 1), (4, 2, 1), (2, 2, 2), (1, 8, 1), (2, 1, 4), (1, 4, 2), (1, 1, 8), (4, 1, 2))
GRID: dict[str, tuple[Any, ...]] = {
    "train.precision": ("float32", "bfloat16", "tf32"),
    "mesh.fsdp_mode": ("full", "zero1"),
    "data.batching": ("packed", "buckets"),
    "model.norm_placement": ("post", "pre"),
    "model.norm_type": ("layernorm", "rmsnorm"),
    "model.activation": ("relu", "gelu"),
    "model.feed_forward": ("dense", "gated"),
    "model.position": ("sinusoid_interleaved", "learned", "rotary", "alibi"),
    "model.tie_embeddings": ("all", "decoder", "none"),
    "model.attention_bias": (False, True),
    "model.num_kv_heads": (0, 8),
    "model.d_model": (32, 128),
    "model.d_ff": (64, 256),
    "model.dropout": (0.0, 0.1, 0.3),
    "model.dropout_attention": (0.0, 0.1),
    "loss.label_smoothing": (0.0, 0.1),
    "loss.logits_chunk_size": (0, 64),
    "train.remat": ("none", "dots", "full"),
    "optimizer.name": ("adam", "adam", "lion", "adafactor", "muon"),
    "optimizer.schedule": ("noam", "inverse_sqrt"),
    "optimizer.max_grad_norm": (0.0, 1.0),
    "optimizer.weight_decay": (0.0, 0.01),
    "optimizer.ema_decay": (0.0, 0.999),
}


def draw(number: int) -> tuple[dict[str, Any], tuple[int, int, int], tuple[int, int]]:
    """(keys, mesh, microbatches and length) of start `number`."""
    rng = np.random.default_rng(number)
    pick = lambda values: values[rng.integers(len(values))]  # noqa: E731
    keys = {name: pick(values) for name, values in GRID.items()}
    mesh = pick(MESHES)
    keys |= dict(zip(("mesh.data", "mesh.fsdp", "mesh.tensor"), mesh, strict=True))
    keys |= {"model.num_heads": 8, "seed.dropout": int(rng.integers(1000)), "model.pad_vocab_to_multiple": 8}
    layers = {f"model.num_{stack}_layers": int(rng.integers(1, 3)) for stack in ("encoder", "decoder")}
    return keys | layers, mesh, (int(rng.integers(1, 5)), pick((24, 32, 64)))


def start(number: int, folder: str) -> dict[str, Any]:
    """The self-test of start `number`."""
    from t2t_flax.config import Config
    from t2t_flax.data.batching.batches import Shape
    from t2t_flax.distributed.mesh import make_mesh
    from t2t_flax.extensions.selftest.run import run_test

    keys, mesh, (micro, length) = draw(number)
    config = Config().with_values(keys)
    report = run_test(config, make_mesh(config.mesh), (300, 300), Shape(length, 16, micro), folder)
    nearest: dict[str, float] = {}
    for one in report.compared:
        nearest[one.stage] = max(nearest.get(one.stage, 0.0), float(one.ratio))
    found = {"precision": keys["train.precision"], "seconds": report.seconds, "faults": report.faults}
    return found | {"nearest": nearest, "keys": keys}


def main(argv: list[str]) -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=15.0, help="no start begins later")
    parser.add_argument("--log", type=Path, required=True, help="file of the starts, which a rerun adds to")
    parser.add_argument("--out", help="file of the record")
    args = parser.parse_args(argv)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
    import jax

    began = time.monotonic()
    starts = [json.loads(line) for line in args.log.read_text().splitlines()] if args.log.exists() else []
    with tempfile.TemporaryDirectory() as folder, args.log.open("a") as log:
        for number in range(len(starts), args.starts):
            if time.monotonic() - began > 60 * args.minutes:
                break
            starts.append(start(number, folder))
            jax.clear_caches()  # no other start uses its programs
            print(json.dumps(starts[-1]), flush=True, file=log)
            said = "; ".join(starts[-1]["faults"]) or " ".join(f"{k} {v:.2f}" for k, v in starts[-1]["nearest"].items())
            print(number, starts[-1]["precision"], f"{starts[-1]['seconds']:.1f} s", said, flush=True, file=sys.stderr)
    publish(summary(starts, argv), args.out)


def summary(starts: list[dict[str, Any]], argv: list[str]) -> dict[str, Any]:
    """The record."""
    nearest: dict[str, dict[str, float]] = {}
    for each in starts:
        of = nearest.setdefault(each["precision"], {})
        for stage, ratio in each["nearest"].items():
            of[stage] = round(max(of.get(stage, 0.0), ratio), 3)
    return {
        "command": command_of("selftest", argv),
        "machine": machine(),
        "starts": len(starts),
        "false_alarms": sum(bool(each["faults"]) for each in starts),
        "largest_error_of_what_is_allowed": nearest,
        "median_seconds": round(float(np.median([each["seconds"] for each in starts])), 1),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
