"""A few hundred updates on this machine's accelerator: tokens/s, MFU and peak memory, next to what `plan` predicts.

    python -m benchmarks.accelerator --out=benchmarks/results/accelerator.json
    python -m benchmarks.accelerator --preset=aiayn_big --steps=300 --config.data.batch_tokens=100000

Every preset runs in its own process, with the train step, batches and prefetching of `train`, on random pairs of 26
tokens on average; --config.KEY=VALUE applies to all of them. The first updates are not timed; the others are timed in
blocks. On a CPU the presets take hours, and `plan` predicts no time.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.record import machine, publish
from t2t_flax.cli import arguments
from t2t_flax.config import load_config
from t2t_flax.errors import UserError

WARM, BLOCK = 20, 20  # updates


def measure(preset: str, steps: int, overrides: dict[str, str]) -> dict[str, Any]:
    """Trains a preset for `steps` updates in this process."""
    from t2t_flax.process_setup import prepare_process

    config = load_config(preset, {"train.steps": str(steps)} | overrides)
    prepare_process(config)
    import jax

    from t2t_flax.data.dataset import Corpus
    from t2t_flax.distributed import mesh as mesh_lib
    from t2t_flax.extensions.planning.flops import training_products
    from t2t_flax.extensions.planning.mfu import mfu, peaks_of, update_flops
    from t2t_flax.monitoring import memory
    from t2t_flax.training.prefetch import Prefetcher
    from t2t_flax.training.setup import compile_train_steps, set_up_training
    from t2t_flax.training.train_state import init_state

    with tempfile.TemporaryDirectory() as folder:
        store = random_store(Path(folder) / "store", config.data.vocab_size)
        side = SimpleNamespace(vocab_size=config.data.vocab_size)
        corpus = Corpus(SimpleNamespace(source=side, target=side), store, {})
        run = set_up_training(config, Path(folder), corpus)
        began = time.perf_counter()
        programs = compile_train_steps(run)
        compiled = time.perf_counter() - began
        products = training_products(config, config.data.vocab_size, run.abstract.params)
        state, _ = init_state(run.config, run.model, run.tx, run.mesh)
        blocks, losses, since, tokens, hardware, useful = [], [], time.perf_counter(), 0.0, 0.0, 0.0
        with Prefetcher(run.batches, run.mesh, 0, steps) as batches:
            for step in range(1, steps + 1):
                batch = batches.next()
                state, metrics = programs[batch.arrays["target"].shape](state, batch.arrays)
                tokens += batch.batch.target_tokens
                flops = update_flops(run, batch.batch, products)
                hardware, useful = hardware + flops[0], useful + flops[1]
                if step % BLOCK == 0:
                    losses.append(float(metrics["loss"]))
                    now = time.perf_counter()
                    if step > WARM:
                        blocks.append((now - since, tokens, hardware, useful))
                    since, tokens, hardware, useful = now, 0.0, 0.0, 0.0
    peaks = peaks_of(run)
    rates = [t / s for s, t, _, _ in blocks]
    stats = jax.local_devices()[0].memory_stats() or {}
    mfus = [mfu(h, u, s, peaks) for s, _, h, u in blocks]
    return {
        "preset": preset,
        "changed": overrides,
        "updates": steps,
        "precision": run.model.dtype.name,
        "shapes": ", ".join(map(str, run.batches.shapes)),
        "rows_on_a_device": max(s.rows for s in run.batches.shapes) // mesh_lib.batch_shards(run.mesh),
        "compile_seconds": round(compiled, 1),
        "target_tokens_per_second": {
            "median": round(statistics.median(rates)), "lowest": round(min(rates)), "highest": round(max(rates)),
            "blocks": len(rates),
        },
        "milliseconds_an_update": round(statistics.median(s for s, *_ in blocks) / BLOCK * 1e3, 3),
        "mfu": {name: round(statistics.median(m[name] for m in mfus), 4) for name in mfus[0]},
        "losses": [round(x, 4) for x in losses],
        "peak_bytes_in_use": stats.get("peak_bytes_in_use"),
        "program_bytes": max(memory.program_bytes(p) or 0 for p in programs.values()),
        "devices": run.mesh.size,
        "kind": jax.devices()[0].device_kind,
        "versions": {"jax": jax.__version__},
        "machine": machine(),
    }  # fmt: skip


def random_store(folder: Path, vocab: int, pairs: int = 200_000):
    """Log-normal lengths of 26 tokens on average, both sides alike."""
    import numpy as np

    from t2t_flax.data.store.token_store import TokenStore
    from t2t_flax.data.store.writer import StoreWriter

    rng = np.random.default_rng(0)
    source = np.clip(rng.lognormal(3.1, 0.6, pairs), 2, 250)
    lengths = [x.astype(np.int32) for x in (source, np.clip(source * rng.normal(1, 0.15, pairs), 2, 250))]
    with StoreWriter(folder, vocab_sizes=(vocab, vocab)) as writer:
        writer.write(*((rng.integers(3, vocab, int(x.sum())), x) for x in lengths))
        writer.meta.update(digest="random")
    return TokenStore.open(folder)


def predict(result: dict[str, Any]) -> dict[str, Any] | None:
    """What `plan` says about the same step on this machine; None without a data sheet of it or without its compiler."""
    from t2t_flax.extensions.planning.chips import GPUS, TPUS
    from t2t_flax.extensions.planning.compiler_process import plan_in_child
    from t2t_flax.extensions.planning.topology import parse

    kind = result["kind"].replace("TPU v5 lite", "TPU v5e").replace("TPU v6 lite", "TPU v6e")
    names = {
        chip.kind: f"{family}-{result['devices'] // chip.devices * chip.cores_in_name}"
        for family, chip in (TPUS | GPUS).items()
    }
    name = next((name for known, name in names.items() if kind.startswith(known)), None)
    if name is None:
        return None
    config = load_config(result["preset"], result["changed"])
    try:
        plan = plan_in_child(config, parse(name), f"--rows={result['rows_on_a_device']}")
    except UserError as error:
        print(f"no prediction: {error}", file=sys.stderr)
        return None
    memory, prediction = plan["train"].get("memory"), plan["prediction"]
    return {
        "topology": name,
        "peak_bytes": memory and memory["peak"],
        "milliseconds_an_update_at_least": prediction and round(prediction["seconds"] * 1e3, 3),
    }


def main(argv: list[str]) -> None:
    """Measures each preset in its own process, then plans for the same machine."""
    parser = arguments.parser("accelerator", __doc__)
    parser.prog = "python -m benchmarks.accelerator"
    parser.add_argument("--preset", action="append", help="default: aiayn_base and aiayn_big")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", metavar="FILE.json")
    parser.add_argument("--here", metavar="FILE.json", help="measure in this process")
    args, overrides = arguments.parse(parser, argv)
    presets = args.preset or ["aiayn_base", "aiayn_big"]
    if args.here:
        Path(args.here).write_text(json.dumps(measure(presets[0], args.steps, overrides)))
        return
    overrides = {"train.precision": "bfloat16"} | overrides
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for preset in presets:
            keys = [f"--config.{key}={value}" for key, value in overrides.items()]
            own = [f"--preset={preset}", f"--steps={args.steps}", f"--here={folder}/result.json", *keys]
            subprocess.run([sys.executable, "-m", "benchmarks.accelerator", *own], check=True)
            result = json.loads(Path(folder, "result.json").read_text())
            results.append(result | {"plan": predict(result)})
    what = "updates as in `train` on random pairs; plan: the prediction for the same rows"
    command = "python -m benchmarks.accelerator " + " ".join(argv)
    publish({"what": what, "command": command.strip(), "results": results}, args.out)


if __name__ == "__main__":
    main(sys.argv[1:])
