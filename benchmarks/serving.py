"""`serve` under load, beside the same engine on the same lines in batch: lines/s, latencies, errors.

    python -m benchmarks.serving --workdir=runs/toy --clients=64 --seconds=60 --out=benchmarks/results/serving_toy.json
    python -m benchmarks.serving --model=base --clients=64 --seconds=60 --out=benchmarks/results/serving_base.json
    python -m benchmarks.serving --workdir=pretrained:toy --clients=64 --seconds=15 --seconds_before=5 --abuse --out=...

Each client sends a line of text, waits for its translation, and sends the next. A round is the batch (`TrainedModel.translate` of
all lines, in a process of its own), then the server; seconds of the load before the measured ones do not count. The clients run
on the same machine. With random weights (--model), for which hypotheses do not end by themselves, translations are limited to 1.1
times the source. With --abuse, each kind of `http_abuse` in turn sends beside the clients, between two quiet phases; then SIGTERM
comes while they do, and each fault of `engines.faulty_server` befalls a server of its own.
"""

import argparse
import contextlib
import dataclasses
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import http_abuse, http_load
from benchmarks.engines.faulty_server import FAULTS
from benchmarks.environments import Environments, variables
from benchmarks.models import EOS, SIZES, draw_pairs
from benchmarks.record import command_of, machine, publish, shown_workdir
from benchmarks.rounds import Engine, ratios, run, spread, threads

SENTENCES = {"mini": 64, "tiny": 512, "base": 192}
DRILL_LIMIT = 5
"""Seconds of --health-limit and --timeout of a server with a fault."""
RANDOM_WEIGHTS = {"decode.max_length_ratio": "1.1", "decode.max_length_offset": "0"}


@dataclasses.dataclass(frozen=True)
class Served:
    """A server; started: seconds until it was ready."""

    process: subprocess.Popen
    url: str
    started: float


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


@contextlib.contextmanager
def served(
    workdir: str, overrides: dict[str, str], *flags: str, fault: Sequence[str] = (), programs: Path | None = None
) -> Iterator[Served]:
    """A server in a process of its own, ready. fault: arguments of `engines.faulty_server`. programs: the folder that caches
    compiled programs.
    """
    words = [
        f"--workdir={workdir}",
        "--port=0",
        *flags,
        *(f"--config.{key}={value}" for key, value in overrides.items()),
    ]
    module = ["benchmarks.engines.faulty_server", *fault] if fault else ["t2t_flax", "serve"]
    cache = {"JAX_COMPILATION_CACHE_DIR": str(programs)} if programs else {}
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", *module, *words], stdout=subprocess.PIPE, text=True, env=variables(**cache)
    ) as server:
        try:
            url = (server.stdout.readline().split() or [""])[-1]
            while not _is_ready(url):
                if server.poll() is not None:
                    sys.exit(f"the server ended with exit code {server.returncode}")
                time.sleep(0.05)
            yield Served(server, url, time.perf_counter() - began)
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(90)
            finally:
                server.kill()


def measure_server(
    workdir: str,
    overrides: dict[str, str],
    lines: list[str],
    pair: tuple[str, str],
    args: argparse.Namespace,
    flags: Sequence[str] = (),
) -> tuple[http_load.Load, float]:
    """(the load, seconds until the server was ready)."""
    times = dict(seconds=args.seconds, before=args.seconds_before)
    key = next((flag.removeprefix("--api-key=") for flag in flags if flag.startswith("--api-key=")), "")
    with served(workdir, overrides, f"--max-queue={2 * args.clients}", *flags) as server:
        load = http_load.run(server.url, lines, pair, clients=args.clients, key=key, **times)
    return load, server.started


def _is_ready(url: str) -> bool:
    return _answers(url, "/ready", 10)


def _answers(url: str, path: str, seconds: float) -> bool:
    try:
        with urllib.request.urlopen(url + path, timeout=seconds):
            return True
    except (OSError, ValueError):
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


def _ratios(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the lines per second of two servers, round by round."""
    return ratios(*([entry["lines_per_second"] for entry in each] for each in (ours, theirs)))


class Watch:
    """Looks at a server twice a second, in a thread: its memory, and how long /health takes."""

    def __init__(self, server: Served):
        self.server, self.megabytes, self.health_seconds, self.failures = server, [], [], 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.5):
            self.megabytes.append(resident_megabytes(self.server.process.pid))
            began = time.monotonic()
            self.failures += not _answers(self.server.url, "/health", 30)
            self.health_seconds.append(time.monotonic() - began)


def resident_megabytes(pid: int) -> float:
    """The memory of a process that is in RAM."""
    status = Path(f"/proc/{pid}/status").read_text()
    return round(int(status.partition("VmRSS:")[2].split()[0]) / 1024, 1)


def measure_under_abuse(server: Served, kind: str, lines: list[str], pair: tuple[str, str], args: argparse.Namespace):
    """The entry of a kind of abuse ("" = none) in the record: what well-behaved clients, /health and the memory saw."""
    with Watch(server) as watch, http_abuse.abuse(server.url, kind):
        load = http_load.run(
            server.url, lines, pair, clients=args.clients, seconds=args.seconds, before=args.seconds_before
        )
    latencies = load.latencies or [math.nan]
    return {
        "abuse": kind or "none",
        "lines_per_second": float(f"{len(load.latencies) / load.seconds:.4g}"),
        "p50_ms": percentile(latencies, 50),
        "p99_ms": percentile(latencies, 99),
        "errors": load.errors,
        "health_failures": watch.failures,
        "health_slowest_ms": percentile(watch.health_seconds, 100),
        "peak_megabytes": max(watch.megabytes),
        "load_average": round(os.getloadavg()[0], 1),
    }


def end_of(server: Served) -> dict[str, float]:
    """Seconds from SIGTERM to the end, and the exit code."""
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    code = server.process.wait(90)
    return {"seconds": round(time.monotonic() - began, 2), "exit_code": code}


def drill(workdir: str, overrides: dict[str, str], fault: str) -> dict[str, Any]:
    """A server whose model has this fault from some moment on: seconds until /health fails, or the process ends by itself."""
    limits = f"--health-limit={DRILL_LIMIT}", f"--timeout={DRILL_LIMIT}"
    with (
        tempfile.TemporaryDirectory() as folder,
        served(workdir, overrides, *limits, fault=(fault, f"{folder}/begin")) as server,
    ):
        time.sleep(2)
        assert _answers(server.url, "/health", 30)
        Path(folder, "begin").touch()
        began = time.monotonic()
        while _answers(server.url, "/health", 30) and time.monotonic() - began < 10 * DRILL_LIMIT:
            time.sleep(0.1)
        entry: dict[str, Any] = {"fault": fault, "seconds_until_health_fails": round(time.monotonic() - began, 2)}
        if fault == "dead":
            return entry | {"ends_by_itself_with": server.process.wait(90)}
        entry["ready"] = _answers(server.url, "/ready", 30)
        return entry | {"sigterm": end_of(server)}


def beside_quiet(phases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The phases, each with its 99th percentile as a multiple of the first one's. The last one, in which nobody harms the server
    either, is no measure: it shows what the abuse before it left behind.
    """
    return [phase | {"p99_to_quiet": round(phase["p99_ms"] / phases[0]["p99_ms"], 2)} for phase in phases]


def measure_abuse(workdir: str, overrides: dict[str, str], args: argparse.Namespace) -> dict[str, Any]:
    """The part of the record that says whether the server keeps its promises."""
    from t2t_flax.evaluation.restore import stored_config

    data, lines = stored_config(workdir).data, lines_of_run(workdir, args.sentences)
    lines, pair = list(dict.fromkeys(lines)), (data.source_language, data.target_language)
    flags = [f"--max-queue={2 * args.clients}", "--timeout=10"]
    phases = []
    with served(workdir, overrides, *flags) as server:
        for kind in ("", *http_abuse.KINDS, ""):
            phases.append(measure_under_abuse(server, kind, lines, pair, args))
            print(phases[-1], file=sys.stderr, flush=True)
        time.sleep(args.seconds_before)
        after = resident_megabytes(server.process.pid)
        with http_abuse.abuse(server.url, "hanging_headers"), http_abuse.abuse(server.url, "all_shapes"):
            time.sleep(3)
            end = end_of(server)
    return {
        "phases": beside_quiet(phases),
        "megabytes_at_the_end": after,
        "sigterm_under_abuse": end,
        "drill_limit_seconds": DRILL_LIMIT,
        "drills": [drill(workdir, overrides, fault) for fault in FAULTS],
        "seconds_until_ready": round(server.started, 1),
    }


def main(argv: list[str]) -> None:
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
    parser.add_argument(
        "--abuse", action="store_true", help="measure beside clients that harm the server, without the batch"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the config, for both")
    parser.add_argument(
        "--flags",
        default="",
        metavar="'--FLAG ...'",
        help="of `serve`, measured in turn with a server without them; clients give the key of --api-key",
    )
    parser.add_argument("--out", metavar="FILE.json", help="where to write the record (default: print it)")
    args = parser.parse_args(argv)
    overrides = dict(item.split("=", 1) for item in args.set)
    if args.abuse and not args.workdir:
        parser.error("--abuse needs --workdir")
    what = f"--workdir={shown_workdir(args.workdir)}" if args.workdir else f"--model={args.model}"
    if args.abuse:
        record = {
            "what": f"serve under the load of {args.clients} clients, {what.split('=')[1]}, beside clients that harm it",
            "command": command_of("serving", argv),
            **measure_abuse(args.workdir, overrides, args),
            "threads": threads(),
            "versions": {"python": platform.python_version()},
            "machine": machine(),
        }
        publish(record, args.out)
        return
    environments, batches, loads, starts, flagged = Environments("", install=False), [], [], [], []
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
        for number in range(args.rounds):
            batches.append(run(Engine("batch", "batch_translation", timeout=3600.0), task, environments))
            servers = [(), args.flags.split()] if args.flags else [()]
            # The second server of a round is often faster than the first: they take turns.
            for flags in servers if number % 2 == 0 else reversed(servers):
                load, started = measure_server(workdir, overrides, lines, tuple(batches[-1]["pair"]), args, flags)
                (flagged if flags else loads).append(load)
                if not flags:
                    starts.append(started)
    if not all(load.latencies for load in [*loads, *flagged]):
        sys.exit(f"no request was answered: {[load.errors for load in [*loads, *flagged]]}")
    entries = [entry_of(load, batch, lines) for load, batch in zip(loads, batches, strict=True)]
    with_flags = [entry_of(load, batch, lines) for load, batch in zip(flagged, batches, strict=False)]
    beside = {"server_with_flags": with_flags, "with_flags_to_without": _ratios(with_flags, entries)} if flagged else {}
    rates = [len(lines) / statistics.median(batch["seconds"]) for batch in batches]
    record = {
        "what": f"serve under the load of {args.clients} clients, {what.split('=')[1]}, beside the same engine in batch",
        "command": command_of("serving", argv),
        "lines": len(lines),
        "decode": batches[0]["decode"] | overrides,
        "batch_lines_per_second": spread(rates),
        "server": entries,
        **beside,
        "server_to_batch": ratios([entry["lines_per_second"] for entry in entries], rates),
        "seconds_until_ready": spread(starts, 3),
        "threads": threads(),
        "versions": {"python": platform.python_version()},
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main(sys.argv[1:])
