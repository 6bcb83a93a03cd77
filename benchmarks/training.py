"""Compare our train step with other toolkits: tokens/s, share of the machine's peak, memory.

    python -m benchmarks.training --model=tiny --out=benchmarks/results/training_tiny.json
    python -m benchmarks.training --model=base --out=benchmarks/results/training_base.json

Everyone trains on the same batches: pairs sorted by length and padded to the longest of the batch.
Same model (post-norm, tied embeddings, sinusoids), Adam, label smoothing and dropout: on embeddings
and sub-layer outputs only. Each engine has its own environment and runs in its own process; the
processes take turns for several rounds, and a ratio compares two results of one round. Peers are
measured as installed, and with tcmalloc and bfloat16, which help PyTorch on CPUs. Their
environments are created first (`--environments`, about 3 GB); an engine that cannot run is skipped
with its reason.
"""

import argparse
import platform
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import environments as environments_lib
from benchmarks.environments import Environments, Unavailable
from benchmarks.models import SIZES, load_batches, save_batches, training_batches
from benchmarks.record import command_of, machine, publish
from benchmarks.rounds import Engine, measure, needs_gpu, ratios, run, spread, threads
from t2t_flax.process_setup import runs_on_cpu

BATCHES = {"mini": 2, "tiny": 5, "base": 2}
ROUNDS = 3


def _needs_bfloat16() -> None:
    from t2t_flax.training.precision import has_bfloat16_instructions

    if runs_on_cpu() and not has_bfloat16_instructions():
        raise Unavailable(
            "this CPU has no bfloat16 instructions; emulated, it is far slower than float32"
        )


def _needs_cpu() -> None:
    if not runs_on_cpu():
        raise Unavailable("for CPUs, whose cores are divided into devices")


TORCH = dict(module="torch_training", environment="torch")
TUNED = dict(preload_tcmalloc=True)
BFLOAT16 = {"precision": "bfloat16"}
ENGINES = (
    Engine("ours", "ours_training"),
    Engine("ours_2_devices", "ours_training", task={"devices": 2}, needs=_needs_cpu),
    Engine("ours_bfloat16", "ours_training", task=BFLOAT16, needs=_needs_bfloat16),
    Engine("torch", **TORCH),
    Engine("torch_tcmalloc", **TORCH, **TUNED),
    Engine("torch_bfloat16", **TORCH, task=BFLOAT16, needs=_needs_bfloat16),
    Engine("torch_bfloat16_tcmalloc", **TORCH, **TUNED, task=BFLOAT16, needs=_needs_bfloat16),
    Engine(
        "ours_einsum",
        "ours_training",
        task=BFLOAT16 | {"keys": {"model.attention_kernel": "einsum"}},
        needs=needs_gpu,
    ),
    Engine("torch_compiled", **TORCH, task=BFLOAT16 | {"compiled": True}, needs=needs_gpu),
    Engine("marian", "marian_training", "transformers"),
    Engine("marian_bfloat16", "marian_training", "transformers", task=BFLOAT16, needs=needs_gpu),
    Engine("joeynmt", "joeynmt_training", "joeynmt"),
)


def count_flops(size: dict[str, Any], batches: list) -> float:
    """Count the FLOPs of training on the real tokens of these batches.

    The backward pass counts twice the forward pass.
    """
    from benchmarks.engines.ours_training import config_of
    from t2t_flax.training.flops import real_tokens, training_products
    from t2t_flax.training.model_summary import state_on_one_device
    from t2t_flax.training.parametrization import parametrization_of

    config, vocab, total = config_of(size), size["vocab"], 0.0
    products = training_products(
        config,
        vocab,
        state_on_one_device(config, (vocab, vocab)).params,
        parametrization_of(config),
    )
    for source, target in batches:
        tokens = real_tokens((source > 0).sum(1), (target > 0).sum(1))
        total += products.flops(config.model, tokens)
    return total


def machine_peak(task: dict[str, Any], environments: Environments) -> dict[str, Any]:
    """Return the GFLOP/s of products by JAX and by PyTorch, and the highest of all.

    The type is float32 on a CPU, else bfloat16.
    """
    out, dtype = {}, "float32" if runs_on_cpu() else "bfloat16"
    for library, environment in (("jax", ""), ("torch", "torch")):
        try:
            result = run(
                Engine(library, "matmul", environment, {"library": library, "dtype": dtype}),
                task,
                environments,
            )
            out[library] = result["gflops"]
        except Unavailable as error:
            out[library] = {"skipped": str(error)}
    best = max(
        value for rates in out.values() for value in rates.values() if not isinstance(value, str)
    )
    return {f"{dtype}_gflops": out, "best_gflops": best}


def summary(
    results: list[dict[str, Any]], tokens: int, flops: float, peak: float
) -> dict[str, Any]:
    """Return an engine's entry in the record, from its rounds."""
    rates = [speed(result, tokens) for result in results]
    passes = [statistics.median(map(sum, result["seconds"])) for result in results]
    first = results[0]
    return {
        "tokens_per_second": spread(rates),
        "milliseconds_a_step": round(1e3 * statistics.median(passes) / len(first["seconds"][0]), 1),
        "gflops": round(flops / statistics.median(passes) / 1e9, 1),
        "fraction_of_peak": round(flops / statistics.median(passes) / 1e9 / peak, 3),
        "peak_rss_mb": max(result["peak_rss_mb"] for result in results),
        "first_pass_seconds": round(first["first_pass_seconds"], 1),
        "first_loss": round(first["losses"][0], 3),
        "last_loss": round(first["losses"][1], 3),
        "settings": first["settings"],
        "versions": first["versions"],
    }


def speed(result: dict[str, Any], tokens: int) -> float:
    """Target tokens/s of a result: of its median pass over the batches."""
    return tokens / statistics.median(map(sum, result["seconds"]))


def main(argv: list[str]) -> None:
    """Measure all engines and write the record."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.training",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=SIZES, default="tiny")
    parser.add_argument("--batches", type=int, help="batches of a pass (default: 5, base 2)")
    parser.add_argument(
        "--tokens", type=int, help="target tokens of a batch (default: 4096, base 2060)"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--passes", type=int, help="timed passes of a process (default: 2, base 1)")
    parser.add_argument("--engines", help="comma-separated")
    parser.add_argument(
        "--no-install", action="store_true", help="skip peers whose environment does not exist"
    )
    parser.add_argument(
        "--out", metavar="FILE.json", help="where to write the record (default: print it)"
    )
    environments_lib.add_flag(parser)
    args = parser.parse_args(argv)
    known = {engine.name: engine for engine in ENGINES}
    names = args.engines.split(",") if args.engines else [engine.name for engine in ENGINES]
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"unknown engines: {', '.join(unknown)}; known: {', '.join(known)}")
    size, count = dict(SIZES[args.model]), args.batches or BATCHES[args.model]
    size["tokens"] = args.tokens or size["tokens"]
    passes = args.passes or (1 if args.model == "base" else 2)
    environments = Environments(args.environments, install=not args.no_install)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "batches.npz")
        save_batches(path, training_batches(size, count))
        batches = load_batches(path)
        tokens, flops = sum(int((t > 0).sum()) for _, t in batches), count_flops(size, batches)
        task = {
            "size": size, "batches": str(path), "passes": passes, "threads": threads(),
            "compile_cache": str(Path(folder, "programs")),
        }  # fmt: skip
        peak = machine_peak(task, environments)
        rate = lambda result: speed(result, tokens)  # noqa: E731
        results, skipped = measure(
            [known[name] for name in names], task, args.rounds, environments, rate
        )
    rates = {name: [rate(result) for result in each] for name, each in results.items()}
    record = {
        "what": f"train step, {args.model}: real target tokens/s on the same batches, in turn",
        "command": command_of("training", argv),
        "model": size,
        "batches": {
            "shapes": [[list(s.shape), list(t.shape)] for s, t in batches],
            "target_tokens": tokens,
            "gflop_per_target_token": round(flops / tokens / 1e9, 5),
        },
        "threads": threads(),
        "peak": peak,
        "engines": {
            name: summary(each, tokens, flops, peak["best_gflops"])
            for name, each in results.items()
        },
        **best_ratios(rates),
        "skipped": skipped,
        "versions": {"python": platform.python_version()},
        "machine": machine(),
    }
    publish(record, args.out)


def best_ratios(rates: dict[str, list[float]]) -> dict[str, Any]:
    """Compare our best arrangement, by its median, with each peer, round by round."""
    own = [name for name in rates if name.startswith("ours")]
    if not own:
        return {"ratio_of": None, "ratio": {}}
    best = max(own, key=lambda name: statistics.median(rates[name]))
    peers = {name: ratios(rates[best], values) for name, values in rates.items() if name not in own}
    return {"ratio_of": best, "ratio": peers}


if __name__ == "__main__":
    main(sys.argv[1:])
