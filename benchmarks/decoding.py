"""Compare beam search with CTranslate2 and Hugging Face: sentences/s, tokens/s, memory.

    python -m benchmarks.decoding --model=tiny --out=benchmarks/results/decoding_tiny.json
    python -m benchmarks.decoding --model=base --out=benchmarks/results/decoding_base.json
    python -m benchmarks.decoding --workdir=runs/toy --out=benchmarks/results/decoding_toy.json

All engines have the same weights and sentences, beam 4, alpha 0.6 with the divisor length^alpha,
and CTranslate2's rule for ending a search. Sentences are sorted by length, in groups of 64 that
share a cap on the output, the same for all engines. With random weights (--model) hypotheses do not
end by themselves: the cap is 1.1 times the longest source. For a trained run it is 50 more than the
longest source. Engines with several arrangements (workers and threads, or devices) try each in the
first round and keep their best. Different outputs are counted apart where their scores are equal up
to rounding.
"""

import argparse
import math
import platform
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import environments as environments_lib
from benchmarks.environments import Environments, Unavailable
from benchmarks.models import SIZES, draw_pairs, read_json
from benchmarks.record import command_of, machine, publish, shown_workdir
from benchmarks.rounds import Engine, measure, needs_gpu, ratios, run, spread, threads
from t2t_flax.process_setup import runs_on_cpu

SENTENCES = {"mini": 64, "tiny": 512, "base": 192}
GROUP = 64
NEAR_TIE = 2e-3
"""Largest difference of the normalised scores of two different outputs that rounding explains."""


def ctranslate2_engine(name: str, compute_type: str, cores: int) -> Engine:
    """CTranslate2 with one worker of all threads, and with one worker for each core."""
    arrangements = {
        f"{workers}x{per}": {"inter_threads": workers, "intra_threads": per}
        for workers, per in dict.fromkeys([(1, cores), (cores, 1)])
    }
    task = {"compute_type": compute_type}
    return Engine(name, "ctranslate2_decoding", "ctranslate2", task, variants=arrangements)


def engines(cores: int) -> tuple[Engine, ...]:
    """All engines for this number of cores."""
    devices = {
        f"{n} devices": {"devices": n} for n in dict.fromkeys([1, cores] if runs_on_cpu() else [1])
    }
    return (
        Engine("ours", "ours_decoding", variants=devices),
        Engine("ours_bfloat16", "ours_decoding", task={"precision": "bfloat16"}, variants=devices),
        ctranslate2_engine("ctranslate2_float32", "float32", cores),
        ctranslate2_engine("ctranslate2_int8", "int8", cores),
        Engine("marian", "marian_decoding", "transformers"),
        Engine("marian_tcmalloc", "marian_decoding", "transformers", preload_tcmalloc=True),
        Engine(
            "marian_bfloat16",
            "marian_decoding",
            "transformers",
            {"precision": "bfloat16"},
            needs=needs_gpu,
        ),
    )


def groups_of(sources: list[list[int]], *, trained: bool) -> list[dict[str, Any]]:
    """Return groups of GROUP sentences by length with their cap, in tokens with EOS."""
    ordered = sorted(sources, key=len)
    groups = [ordered[start : start + GROUP] for start in range(0, len(ordered), GROUP)]
    cap = (lambda longest: longest + 50) if trained else (lambda longest: math.ceil(1.1 * longest))
    return [{"sources": group, "cap": cap(len(group[-1]))} for group in groups]


def speed(result: dict[str, Any]) -> float:
    """Sentences/s of a result's median pass."""
    return len(result["outputs"]) / statistics.median(result["seconds"])


def agreement(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, int]:
    """Count the equal outputs and, of the others, the ones with the same score up to rounding."""
    different = [
        i for i, (a, b) in enumerate(zip(ours["outputs"], theirs["outputs"], strict=True)) if a != b
    ]
    counts = {"sentences": len(ours["outputs"]), "equal": len(ours["outputs"]) - len(different)}
    if "scores" not in theirs:
        return counts
    near = sum(abs(ours["scores"][i] - theirs["scores"][i]) < NEAR_TIE for i in different)
    return counts | {"near_ties": near, "different": len(different) - near}


def summary(name: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return an engine's entry in the record, from its rounds.

    first_pass_seconds: loading the model and a group, for peers.
    """
    first = results[0]
    tokens = sum(map(len, first["outputs"]))
    rates = [speed(result) for result in results]
    entry = {
        "sentences_per_second": spread(rates),
        "tokens_per_second": round(statistics.median(rates) * tokens / len(first["outputs"])),
        "output_tokens": tokens,
        "first_pass_seconds": round(first["first_pass_seconds"], 1),
        "peak_rss_mb": max(result["peak_rss_mb"] for result in results),
        "settings": first["settings"],
        "versions": first["versions"],
    }
    # The first pass compiles every program and then does the work of a pass.
    if name.startswith("ours"):
        entry["compile_seconds"] = round(
            first["first_pass_seconds"] - statistics.median(first["seconds"]), 1
        )
    if "tried" in first:
        entry["tried"] = {name: float(f"{rate:.4g}") for name, rate in first["tried"].items()}
        entry["arrangement"] = first["variant"]
    return entry


def main(argv: list[str]) -> None:
    """Measure all engines and write the record."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.decoding",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=SIZES, default="tiny")
    parser.add_argument(
        "--workdir",
        metavar="DIR",
        help="a trained run, in place of --model; its data.test is translated",
    )
    parser.add_argument(
        "--sentences", type=int, help="default: 512, base 192; all of a run's test set"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passes", type=int, help="timed passes of a process (default: 3, base 1)")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--beam_size", type=int, default=4)
    parser.add_argument("--engines", help="comma-separated")
    parser.add_argument(
        "--no-install", action="store_true", help="skip peers whose environment does not exist"
    )
    parser.add_argument(
        "--out", metavar="FILE.json", help="where to write the record (default: print it)"
    )
    environments_lib.add_flag(parser)
    args = parser.parse_args(argv)
    cores, environments = threads(), Environments(args.environments, install=not args.no_install)
    known = {engine.name: engine for engine in engines(cores)}
    names = args.engines.split(",") if args.engines else list(known)
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"unknown engines: {', '.join(unknown)}; known: {', '.join(known)}")
    what = f"--workdir={shown_workdir(args.workdir)}" if args.workdir else f"--model={args.model}"
    passes = args.passes or (1 if args.model == "base" and not args.workdir else 3)
    with tempfile.TemporaryDirectory() as folder:
        task = {
            "folder": folder,
            "size": SIZES[args.model],
            "threads": cores,
            "passes": passes,
            "alpha": 0.6,
            "batch_size": args.batch_size,
            "beam_size": args.beam_size,
            "compile_cache": str(Path(folder, "programs")),
        }
        groups = task["groups"] = write_model(
            task, args.model, args.workdir, args.sentences, environments
        )
        results, skipped = measure(
            [known[name] for name in names], task, args.rounds, environments, speed
        )
        keys = read_json(Path(folder, "model.json"))
    rates = {name: [speed(result) for result in each] for name, each in results.items()}
    ours = results.get("ours")
    peers = [name for name in results if ours and name != "ours"]
    shown = ("d_model", "d_ff", "num_heads", "num_encoder_layers", "num_decoder_layers")
    model = what.split("=")[1]
    record = {
        "what": f"beam search, {model}: sentences/s on the same weights and sentences, in turn",
        "command": command_of("decoding", argv),
        "model": {k: keys["keys"][k] for k in shown}
        | {"vocab": keys["vocab"], "weights": "trained" if args.workdir else "random"},
        "search": {
            "beam_size": args.beam_size,
            "alpha": 0.6,
            "length_penalty": "power",
            "early_stopping": "beam_full",
            "sentences": sum(len(g["sources"]) for g in groups),
            "batch_size": args.batch_size,
            "source_tokens": sum(len(ids) for g in groups for ids in g["sources"]),
            "caps": [g["cap"] for g in groups],
        },
        "threads": cores,
        "engines": {name: summary(name, each) for name, each in results.items()},
        "ratio": {name: ratios(rates["ours"], rates[name]) for name in peers},
        "agreement": {name: agreement(ours[0], results[name][0]) for name in peers},
        "skipped": skipped,
        "versions": {"python": platform.python_version()},
        "machine": machine(),
    }
    publish(record, args.out)


def write_model(
    task: dict[str, Any],
    model: str,
    workdir: str | None,
    sentences: int | None,
    environments: Environments,
) -> list[dict[str, Any]]:
    """Write the weights of a run, or random ones, for all engines; return groups of sentences.

    Exits with the reason if it cannot.
    """
    lines: list[str] = []
    if workdir:
        from t2t_flax.data.splits import split_source
        from t2t_flax.evaluation.restore import stored_config
        from t2t_flax.tasks import task_of

        config = stored_config(workdir)
        lines = [pair[0] for pair in split_source(task_of(config), "test").read()][:sentences]
    try:
        run(
            Engine("weights", "weights", task={"workdir": workdir, "lines": lines}),
            task,
            environments,
        )
    except Unavailable as error:
        sys.exit(f"the model could not be written: {error}")
    if workdir:
        return groups_of(read_json(Path(task["folder"], "sources.json")), trained=True)
    pairs = draw_pairs(task["size"], sentences or SENTENCES[model], seed=1)
    return groups_of([source for source, _ in pairs], trained=False)


if __name__ == "__main__":
    main(sys.argv[1:])
