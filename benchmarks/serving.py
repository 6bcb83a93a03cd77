"""`serve` under load, beside the same engine on the same lines in batch: lines/s, latencies, errors.

    python -m benchmarks.serving --workdir=runs/toy --clients=64 --seconds=60 --out=benchmarks/results/serving_toy.json
    python -m benchmarks.serving --model=base --clients=64 --seconds=60 --out=benchmarks/results/serving_base.json

Each client sends a line of text, waits for its translation, and sends the next. A round is the batch (`Loaded.translate` of all
lines, in a process of its own), then the server; seconds of the load before the measured ones do not count. The clients run on
the same machine. With random weights (--model), for which hypotheses do not end by themselves, translations are limited to 1.1
times the source.
"""

import argparse
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks import http_load
from benchmarks.environments import Environments, variables
from benchmarks.models import EOS, SIZES, draw_pairs
from benchmarks.record import machine, publish
from benchmarks.rounds import Engine, ratios, run, spread, threads

SENTENCES = {"mini": 64, "tiny": 512, "base": 192}
RANDOM_WEIGHTS = {"decode.max_length_ratio": "1.1", "decode.max_length_offset": "0"}


def lines_of_run(workdir: str, count: int | None) -> list[str]:
    """Sources of the run's test set."""
    from t2t_flax.data.dataset import split_source
    from t2t_flax.evaluation.restore import stored_config
    from t2t_flax.tasks import task_of

    config = stored_config(workdir)
    return [pair[0] for pair in split_source(task_of(config), "test").read()][:count]


def random_lines(model: str, count: int | None) -> list[str]:
    """Lines of words for the model of `engines.random_model`."""
    pairs = draw_pairs(SIZES[model], count or SENTENCES[model], seed=1)
    return [" ".join(f"w{i}" for i in source if i != EOS) for source, _ in pairs]


def measure_server(
    workdir: str, overrides: dict[str, str], lines: list[str], pair: tuple[str, str], args: argparse.Namespace
) -> tuple[http_load.Load, float]:
    """(the load, seconds until the server was ready)."""
    words = [f"--workdir={workdir}", "--port=0", f"--max-queue={2 * args.clients}"]
    words += [f"--config.{key}={value}" for key, value in overrides.items()]
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "t2t_flax", "serve", *words], stdout=subprocess.PIPE, text=True, env=variables()
    ) as server:
        try:
            url = (server.stdout.readline().split() or [""])[-1]
            while not _is_ready(url):
                if server.poll() is not None:
                    sys.exit(f"the server ended with exit code {server.returncode}")
                time.sleep(0.2)
            started = time.perf_counter() - began
            load = http_load.run(
                url, lines, pair, clients=args.clients, seconds=args.seconds, before=args.seconds_before
            )
        finally:
            server.send_signal(signal.SIGTERM)
        server.wait(60)
    return load, started


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=10):
            return True
    except (urllib.error.URLError, ValueError):
        return False


def percentile(latencies: list[float], percent: int) -> float:
    """The smallest latency, in milliseconds, that at least this many percent do not exceed."""
    ordered = sorted(latencies)
    return round(1000 * ordered[max(0, -(-percent * len(ordered) // 100) - 1)], 1)


def entry_of(load: http_load.Load, batch: dict[str, Any], lines: list[str]) -> dict[str, Any]:
    """A round's entry in the record. different: lines whose translation differs from the batch's."""
    expected = dict(zip(lines, batch["translations"], strict=True))
    return {
        "lines_per_second": float(f"{len(load.latencies) / load.seconds:.4g}"),
        "requests": len(load.latencies),
        "p50_ms": percentile(load.latencies, 50),
        "p99_ms": percentile(load.latencies, 99),
        "errors": load.errors,
        "different": sum(text != expected[line] for line, text in load.translations.items()),
        "client_cpu_seconds": round(load.client_cpu_seconds, 1),
    }


def main(argv: list[str] | None = None) -> None:
    """Measures and writes the record."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", choices=SIZES, help="random weights of this size")
    which.add_argument("--workdir", metavar="DIR", help="a trained run; its data.test is translated")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0, help="of load that count")
    parser.add_argument("--seconds_before", type=float, default=10.0, help="of load that do not count")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--passes", type=int, default=3, help="timed passes of the batch")
    parser.add_argument("--sentences", type=int, help="default: 512, base 192; all of a run's test set")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the config, for both")
    parser.add_argument("--out", metavar="FILE.json", help="where to write the record (default: print it)")
    args = parser.parse_args(argv)
    overrides = dict(item.split("=", 1) for item in args.set)
    what = f"--workdir=runs/{Path(args.workdir).name}" if args.workdir else f"--model={args.model}"
    words = ["python -m benchmarks.serving", what, f"--clients={args.clients}", f"--seconds={args.seconds:g}"]
    words += [f"--seconds_before={args.seconds_before:g}", f"--rounds={args.rounds}", f"--passes={args.passes}"]
    words += [f"--sentences={args.sentences}"] if args.sentences else []
    words += [f"--set {item}" for item in args.set]
    environments, batches, loads, starts = Environments("", install=False), [], [], []
    with tempfile.TemporaryDirectory() as folder:
        workdir = args.workdir
        if workdir:
            lines = lines_of_run(workdir, args.sentences)
        else:
            workdir, overrides = str(Path(folder, args.model)), RANDOM_WEIGHTS | overrides
            task = {"size": SIZES[args.model], "out": workdir, "threads": threads()}
            run(Engine("model", "random_model"), task, environments)
            lines = random_lines(args.model, args.sentences)
        lines = list(dict.fromkeys(lines))
        task = {"workdir": workdir, "overrides": overrides, "lines": lines, "passes": args.passes, "threads": threads()}
        for _ in range(args.rounds):
            batches.append(run(Engine("batch", "batch_translation", timeout=3600.0), task, environments))
            load, started = measure_server(workdir, overrides, lines, tuple(batches[-1]["pair"]), args)
            loads.append(load)
            starts.append(started)
    if not all(load.latencies for load in loads):
        sys.exit(f"no request was answered: {[load.errors for load in loads]}")
    entries = [entry_of(load, batch, lines) for load, batch in zip(loads, batches, strict=True)]
    rates = [len(lines) / statistics.median(batch["seconds"]) for batch in batches]
    record = {
        "what": f"serve under the load of {args.clients} clients, {what.split('=')[1]}, beside the same engine in batch",
        "command": " ".join(words),
        "lines": len(lines),
        "decode": batches[0]["decode"] | overrides,
        "batch_lines_per_second": spread(rates),
        "server": entries,
        "server_to_batch": ratios([entry["lines_per_second"] for entry in entries], rates),
        "seconds_until_ready": spread(starts, 3),
        "threads": threads(),
        "versions": {"python": platform.python_version()},
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main(sys.argv[1:])
