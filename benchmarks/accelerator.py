"""Training on this machine's accelerators: target tokens/s, MFU, memory and the time to compile, beside the bound of `plan`.

    python -m benchmarks.accelerator --out=benchmarks/results/accelerator.json
    python -m benchmarks.accelerator --rows=base,base_cudnn --updates=200 --config.data.batch_tokens=100000

A row is a preset with keys. It trains in a process of its own, by the loop of `train` with prefetching and logs, on random pairs
of 27 tokens on average, packed; --config.KEY=VALUE applies to all rows. Rates are of blocks of 20 updates without the first.
bound_ms: as in `plan`, products at the peak by data sheet, or parameters and moments read and written once.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.environments import variables
from benchmarks.record import command_of, machine, publish
from benchmarks.rounds import spread
from t2t_flax.cli import arguments
from t2t_flax.errors import UserError

KERNELS: dict[str, dict[str, Any]] = {
    "": {"model.attention_kernel": "einsum"},
    "_cudnn": {"model.attention_kernel": "cudnn"},
    "_cudnn_chunks": {"model.attention_kernel": "cudnn", "loss.logits_chunk_size": 2048},
    "_splash": {"model.attention_kernel": "splash"},
}
ROWS = {size + name: (f"aiayn_{size}", keys) for size in ("base", "big") for name, keys in KERNELS.items()}
DEFAULT = "base,base_cudnn,base_cudnn_chunks,big,big_cudnn,big_cudnn_chunks"
BLOCK, PAIRS = 20, 200_000


def train_row(preset: str, keys: dict[str, Any], updates: int) -> dict[str, Any]:
    """Trains in this process, and returns what a row says."""
    from t2t_flax.config import load_config
    from t2t_flax.process_setup import prepare_process

    fixed = {"train.steps": updates, "log.every_steps": BLOCK}
    config = load_config(preset, {name: str(value) for name, value in (fixed | keys).items()})
    prepare_process(config)
    import jax
    from etils import epath

    from benchmarks.input_rate import write_corpus
    from t2t_flax.data.dataset import Corpus
    from t2t_flax.data.token_store import TokenStore
    from t2t_flax.training.loop import train
    from t2t_flax.training.progress import read_metrics
    from t2t_flax.training.setup import set_up_training

    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder, "store"), "wmt", PAIRS, config.data.vocab_size)
        side = SimpleNamespace(vocab_size=config.data.vocab_size)
        tokenizers = SimpleNamespace(source=side, target=side, digest="random")
        setup = set_up_training(
            config, epath.Path(folder), Corpus(tokenizers, TokenStore.open(Path(folder, "store")), {})
        )
        end = train(setup, None)
        lines = list(read_metrics(folder))
    blocks = [line for line in lines if "target_tokens_per_second" in line][1:]
    shape = max(setup.batches.shapes, key=lambda shape: shape.size)
    rates = [line["target_tokens_per_second"] for line in blocks]
    tokens = setup.batches.batch(0).target_tokens
    used = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    return {
        "preset": preset,
        "keys": keys,
        "shape": str(shape),
        "target_tokens": tokens,
        "target_tokens_per_second": spread(rates),
        "ms_an_update": round(1e3 * tokens / statistics.median(rates), 2),
        "bound_ms": bound(setup, shape),
        "mfu": {name: round(statistics.median(b[name] for b in blocks), 3) for name in blocks[0] if "mfu" in name},
        "peak_gib": used and round(used / 2**30, 2),
        "compile_seconds": round(end.seconds["compile"], 1),
        "losses": [round(lines[0]["loss"], 4), round(blocks[-1]["loss"], 4)],
        "versions": {"jax": jax.__version__},
    }


def bound(setup: Any, shape: Any) -> float | None:
    """Milliseconds that an update takes at least, exchange left out; None for a device without a data sheet."""
    import jax

    from t2t_flax.extensions.planning.chips import GPUS, TPUS
    from t2t_flax.extensions.planning.plan import roofline, update_flops
    from t2t_flax.extensions.planning.topology import Topology
    from t2t_flax.training.setup import resident_bytes

    kind = jax.devices()[0].device_kind.replace(" lite", "e")
    chip = next((chip for chip in (GPUS | TPUS).values() if kind.startswith(chip.kind)), None)
    flops = update_flops(setup.config, shape, setup.abstract.params) / setup.mesh.size
    line = roofline(Topology("here", "", chip, (setup.mesh.size,)), flops, 2 * resident_bytes(setup.abstract), [])
    return line and round(1e3 * line.seconds, 2)


def run_row(name: str, updates: int, overrides: dict[str, str]) -> dict[str, Any]:
    """What a row says, or why it failed; compiled anew, since programs are not taken from JAX's cache."""
    flags = [f"--rows={name}", f"--updates={updates}", *(f"--config.{k}={value}" for k, value in overrides.items())]
    command = [sys.executable, "-m", "benchmarks.accelerator", "--here", *flags]
    own = variables(JAX_ENABLE_COMPILATION_CACHE="false")
    done = subprocess.run(command, capture_output=True, text=True, env=own, check=False)
    if not done.returncode:
        return json.loads(done.stdout.splitlines()[-1])
    print(done.stderr, file=sys.stderr)
    lines = done.stderr.strip().splitlines() or ["no message"]
    errors = [line for line in lines if "Error: " in line] or lines
    return {"failed": f"exit code {done.returncode}: {errors[-1][:300]}"}


def main(argv: list[str]) -> None:
    """Measures each row in a process of its own, and writes the record."""
    parser = arguments.parser("accelerator", __doc__)
    parser.prog = "python -m benchmarks.accelerator"
    parser.add_argument("--rows", default=DEFAULT, help=f"comma-separated, of {', '.join(ROWS)}")
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", metavar="FILE.json", help="where to write the record (default: print it)")
    args, overrides = arguments.parse(parser, argv)
    names = args.rows.split(",")
    if unknown := sorted(set(names) - set(ROWS)):
        parser.error(f"unknown rows: {', '.join(unknown)}; known: {', '.join(ROWS)}")
    if args.updates < 2 * BLOCK:
        parser.error(f"--updates={args.updates}: at least {2 * BLOCK}, since the first {BLOCK} are not timed")
    if args.here:
        preset, keys = ROWS[names[0]]
        print(json.dumps(train_row(preset, keys | overrides, args.updates)))
        return
    rows = {}
    for name in names:
        rows[name] = run_row(name, args.updates, overrides)
        print(name, rows[name], flush=True, file=sys.stderr)
    record = {
        "what": "training in bfloat16 on random pairs, packed: real target tokens/s",
        "command": command_of("accelerator", argv),
        "rows": rows,
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"benchmarks.accelerator: {error}")
