"""Lines per second and latencies of `serve` under the load of clients that each send one line after the other:

    python -m benchmarks.serving --workdir=pretrained:toy --clients=64 --seconds=20 --rounds=3

The lines are those of the run's data.test. Clients are plain asyncio streams, because they share the machine's cores with the
server.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import platform
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.environments import variables
from benchmarks.record import command_of, machine, publish, shown_workdir
from benchmarks.rounds import spread, threads


@dataclasses.dataclass(frozen=True)
class Served:
    """A server; started: seconds until it was ready."""

    process: subprocess.Popen
    url: str
    started: float


@dataclasses.dataclass
class Load:
    """What the clients saw within the measured seconds.

    Args:
      latencies: seconds of the answers with status 200.
      errors: numbers of other answers by status, and of exceptions by name.
    """

    seconds: float
    latencies: list[float] = dataclasses.field(default_factory=list)
    errors: dict[str, int] = dataclasses.field(default_factory=dict)


@contextlib.contextmanager
def served(workdir: str, *flags: str, programs: Path | None = None) -> Iterator[Served]:
    """Run a server in a process of its own, ready.

    Args:
      programs: folder that caches compiled programs.
    """
    command = [sys.executable, "-m", "t2t_flax", "serve", f"--workdir={workdir}", "--port=0", *flags]
    cache = {"JAX_COMPILATION_CACHE_DIR": str(programs)} if programs else {}
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables(**cache)) as server:
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


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=10):
            return True
    except (OSError, ValueError):
        return False


async def run_clients(
    url: str, lines: Sequence[str], pair: tuple[str, str], *, clients: int, seconds: float, before: float
) -> Load:
    """Run clients for `before` seconds that do not count and `seconds` that do."""
    address = urllib.parse.urlsplit(url)
    load, began = Load(seconds), time.monotonic() + before

    async def client(first: int) -> None:
        number, connection = first, None
        while (sent := time.monotonic()) < began + seconds:
            line, number = lines[number % len(lines)], number + 1
            body = json.dumps({"q": line, "source": pair[0], "target": pair[1]}).encode()
            try:
                connection = connection or await asyncio.open_connection(address.hostname, address.port)
                status = await _post(*connection, body)
            except (OSError, asyncio.IncompleteReadError) as error:
                status, connection = type(error).__name__, None
            answered = time.monotonic()
            if status != "200":
                await asyncio.sleep(0.1)
            if not began <= answered <= began + seconds:
                continue
            if status == "200":
                load.latencies.append(answered - sent)
            else:
                load.errors[status] = load.errors.get(status, 0) + 1
        if connection:
            connection[1].close()

    await asyncio.gather(*map(client, range(clients)))
    return load


async def _post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> str:
    """Return the status of an answer."""
    head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length:"
    writer.write(f"{head} {len(body)}\r\n\r\n".encode() + body)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    await reader.readexactly(int(head.partition("content-length:")[2].partition("\r\n")[0]))
    return head.split()[1]


def percentile(latencies: Sequence[float], percent: int) -> float:
    """Return the smallest latency, in milliseconds, that at least this many percent do not exceed."""
    ordered = sorted(latencies)
    return round(1000 * ordered[max(0, -(-percent * len(ordered) // 100) - 1)], 1)


def entry_of(load: Load) -> dict:
    """Return a round's entry in the record."""
    if not load.latencies:
        sys.exit(f"no request was answered: {load.errors}")
    return {
        "lines_per_second": float(f"{len(load.latencies) / load.seconds:.4g}"),
        "requests": len(load.latencies),
        "p50_ms": percentile(load.latencies, 50),
        "p99_ms": percentile(load.latencies, 99),
        "errors": load.errors,
    }


def main(argv: list[str]) -> None:
    """Measure and write the record."""
    from t2t_flax.data.dataset import split_source
    from t2t_flax.evaluation.restore import stored_config
    from t2t_flax.tasks import task_of

    parser = argparse.ArgumentParser(
        "python -m benchmarks.serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", metavar="DIR", required=True, help="a trained run; its data.test is translated")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0, help="of load that count")
    parser.add_argument("--seconds_before", type=float, default=20.0, help="of load that do not count")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--flags", default="", metavar="'--FLAG ...'", help="of `serve`")
    parser.add_argument("--out", metavar="FILE.json", help="where to write the record (default: print it)")
    args = parser.parse_args(argv)
    config = stored_config(args.workdir)
    lines = list(dict.fromkeys(pair[0] for pair in split_source(task_of(config), "test").read()))
    pair = config.data.source_language, config.data.target_language
    entries, starts = [], []
    for _ in range(args.rounds):
        with served(args.workdir, f"--max-queue={2 * args.clients}", *args.flags.split()) as server:
            times = dict(clients=args.clients, seconds=args.seconds, before=args.seconds_before)
            entries.append(entry_of(asyncio.run(run_clients(server.url, lines, pair, **times))))
            starts.append(server.started)
    record = {
        "what": f"serve under the load of {args.clients} clients, {shown_workdir(args.workdir)}",
        "command": command_of("serving", argv),
        "lines": len(lines),
        "server": entries,
        "seconds_until_ready": spread(starts, 3),
        "threads": threads(),
        "versions": {"python": platform.python_version()},
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main(sys.argv[1:])
