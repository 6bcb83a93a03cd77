"""Lines per second and latencies of `serve` while clients each send one line after the other.

    python -m benchmarks.serving --workdir=pretrained:toy --clients=64 --seconds=20 --rounds=3 \\
        --hostile=8 --requests=20000

The lines come from the run's data.test. Clients are plain asyncio streams, because they share the
machine's cores with the server. `--hostile` measures the same clients beside others whose requests
are slow to read; `--requests` measures the memory of the server under random requests, right and
wrong.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.environments import variables
from benchmarks.record import command_of, machine, publish, shown_workdir
from benchmarks.rounds import threads

_KEY = "key"
_SETTLES = 2.0
"""Seconds of a later round that do not count."""


@dataclasses.dataclass(frozen=True)
class Served:
    """A server; started: seconds until it was ready."""

    process: subprocess.Popen
    url: str
    started: float


@dataclasses.dataclass
class Load:
    """Answers to the clients within the measured seconds.

    Args:
      latencies: seconds of the answers with status 200.
      errors: numbers of other answers by status, and of exceptions by name.
      hostile: number of answers to hostile clients.
    """

    seconds: float
    latencies: list[float] = dataclasses.field(default_factory=list)
    errors: dict[str, int] = dataclasses.field(default_factory=dict)
    hostile: int = 0


@contextlib.contextmanager
def served(workdir: str, *flags: str, programs: Path | None = None) -> Iterator[Served]:
    """Start a server and wait until it is ready.

    Args:
      programs: folder that caches compiled programs.
    """
    command = [
        sys.executable,
        "-m",
        "t2t_flax",
        "serve",
        f"--workdir={workdir}",
        "--port=0",
        *flags,
    ]
    cache = {"JAX_COMPILATION_CACHE_DIR": str(programs)} if programs else {}
    began = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=variables(**cache)
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


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=10):
            return True
    except (OSError, ValueError):
        return False


async def run_clients(
    url: str,
    lines: Sequence[str],
    pair: tuple[str, str],
    *,
    clients: int,
    seconds: float,
    before: float,
    hostile: int = 0,
    key: str = "",
) -> Load:
    """Run clients for `before` seconds that do not count and `seconds` that do.

    Args:
      hostile: number of clients beside them that send `hostile_requests`.
    """
    load, began = Load(seconds), time.monotonic() + before

    async def client(first: int) -> None:
        number = first
        async with _connected(url) as send:
            while (sent := time.monotonic()) < began + seconds:
                line, number = lines[number % len(lines)], number + 1
                status = await send(
                    Request(
                        "/translate", json.dumps({"q": line, **_fields(pair)}).encode(), key=key
                    )
                )
                answered = time.monotonic()
                if status != "200":
                    await asyncio.sleep(0.1)
                if not began <= answered <= began + seconds:
                    continue
                if status == "200":
                    load.latencies.append(answered - sent)
                else:
                    load.errors[status] = load.errors.get(status, 0) + 1

    async def attacker(first: int) -> None:
        requests = hostile_requests(pair, key)
        async with _connected(url) as send:
            number = first
            while time.monotonic() < began + seconds:
                await send(requests[number % len(requests)])
                number, load.hostile = number + 1, load.hostile + 1

    await asyncio.gather(*map(client, range(clients)), *map(attacker, range(hostile)))
    return load


@dataclasses.dataclass(frozen=True)
class Request:
    """A request of a client; a GET if it has no body."""

    path: str
    body: bytes | None = None
    type: str = "application/json"
    key: str = ""


Send = Callable[[Request], Awaitable[str]]


@contextlib.asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Send]:
    """Yield a function that returns the status of a request, or the name of an exception."""
    address, connection = urllib.parse.urlsplit(url), []

    async def send(request: Request) -> str:
        try:
            if not connection:
                connection.extend(await asyncio.open_connection(address.hostname, address.port))
            status, closes = await _answer(*connection, request)
        except (OSError, asyncio.IncompleteReadError) as error:
            status, closes = type(error).__name__, True
        if closes and connection:
            connection[1].close()
            connection.clear()
        return status

    try:
        yield send
    finally:
        if connection:
            connection[1].close()


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Request
) -> tuple[str, bool]:
    """Return the status of an answer, and whether the server closes the connection."""
    body = request.body or b""
    head = (
        f"{'GET' if request.body is None else 'POST'} {request.path} HTTP/1.1\r\nHost:"
        " localhost\r\n"
    )
    head += f"Content-Type: {request.type}\r\nContent-Length: {len(body)}\r\n"
    head += f"Authorization: Bearer {request.key}\r\n" if request.key else ""
    writer.write(f"{head}\r\n".encode() + body)
    found = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    await reader.readexactly(int(found.partition("content-length:")[2].partition("\r\n")[0]))
    return found.split()[1], "connection: close" in found


def _fields(pair: tuple[str, str]) -> dict[str, str]:
    return {"source": pair[0], "target": pair[1]}


def hostile_requests(pair: tuple[str, str], key: str) -> list[Request]:
    """Return requests that take long to read: HTML with a key, and forms of 256 KiB without one."""
    texts = [
        "<a " * 6666,
        "<b>x" * 5000,
        "<a x='>' " * 2200,
        "<b>" * 6000 + "x",
        "</" * 10_000,
        "<b></i>" * 2800,
    ]
    documents = [
        json.dumps({"q": text, "format": "html", **_fields(pair)}).encode() for text in texts
    ]
    part = b"--b\r\n" + b"a: b\r\n" * 6 + b"content-disposition: form-data; name=x\r\n\r\n\r\n"
    form = part * (2**18 // len(part) - 1) + b"--b--"
    return [
        *(Request("/translate", body, key=key) for body in documents),
        Request("/translate", form, "multipart/form-data; boundary=b"),
        Request("/translate", b"q=a&" * 2**15, _FORM),
        Request("/translate", json.dumps({"q": [1] * 80_000}).encode()),
    ]


_FORM = "application/x-www-form-urlencoded"


def random_request(
    draw: random.Random, lines: Sequence[str], pair: tuple[str, str], key: str
) -> Request:
    """Return a request of any route: one in five is translated, the others are refused or cheap."""
    words = " ".join(draw.choices(lines, k=draw.choice((1, 1, 1, 2, 6)))).split()
    text = " ".join(words[: draw.randint(1, len(words))])
    marked = " ".join(f"<b>{word}</b>" if draw.random() < 0.3 else word for word in text.split())
    ask: dict[str, Any] = {"q": text, **_fields(pair)}
    translated: list[tuple[str, Any]] = [
        ("/translate", ask),
        ("/translate", ask | {"q": [text] * draw.randint(1, 9)}),
        ("/translate", ask | {"alternatives": draw.randint(1, 3)}),
        ("/translate", ask | {"q": marked, "format": "html"}),
        ("/api/translate", {"text": [text], "n_best": draw.randint(1, 4)}),
        ("/api/attention", {"source": lines[0]}),
    ]
    others: list[tuple[str, Any]] = [
        ("/detect", {"q": text}),
        ("/translate", ask | {"q": [draw.choice((1, None, {}))] * draw.randint(1, 40_000)}),
        ("/translate", ask | {"q": text * 400}),
        ("/translate", ask | {"q": "<p>" * draw.randint(1, 6000), "format": "html"}),
        ("/api/translate", {"text": text * draw.randint(1, 1000)}),
        ("/api/translate", {"text": ["x" * 100] * draw.randint(300, 2000)}),
        ("/api/attention", {"source": text * 20}),
        ("/api/nothing", {}),
    ]
    if draw.random() < 0.2:
        return Request(draw.choice(("/", "/metrics", "/api/models", "/translate", "/x")))
    if draw.random() < 0.2:
        return Request(
            "/translate",
            draw.randbytes(draw.randint(0, 2**18)),
            draw.choice((_FORM, "application/json")),
            key,
        )
    path, body = draw.choice(translated if draw.random() < 0.3 else others)
    if path == "/translate" and draw.random() < 0.2:
        return Request(path, urllib.parse.urlencode(body, doseq=True).encode()[: 2**18], _FORM, key)
    return Request(path, json.dumps(body).encode()[: 2**18], key=key)


async def memory_curve(
    server: Served, lines: Sequence[str], pair: tuple[str, str], count: int, key: str
) -> list[int]:
    """Return the server's MiB at the start, and after each thousand of `count` random requests."""
    draw, left, curve = random.Random(0), count, [_resident(server.process.pid)]

    async def client() -> None:
        nonlocal left
        async with _connected(server.url) as send:
            while left > 0:
                left -= 1
                if left % 1000 == 0:
                    curve.append(_resident(server.process.pid))
                await send(random_request(draw, lines, pair, key))

    await asyncio.gather(*(client() for _ in range(16)))
    return curve


def _resident(process: int) -> int:
    """Return the resident memory of a process in MiB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1024


def percentile(latencies: Sequence[float], percent: int) -> float:
    """Return the smallest milliseconds that at least this many percent do not exceed."""
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
    } | ({"hostile_requests": load.hostile} if load.hostile else {})


def main(argv: list[str]) -> None:
    """Measure and write the record."""
    from t2t_flax.data.splits import split_source
    from t2t_flax.evaluation.restore import stored_config
    from t2t_flax.tasks import task_of

    parser = argparse.ArgumentParser(
        "python -m benchmarks.serving",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--workdir", metavar="DIR", required=True, help="a trained run; its data.test is translated"
    )
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0, help="of load that count")
    parser.add_argument(
        "--seconds_before", type=float, default=20.0, help="of load that do not count, at first"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--hostile", type=int, default=0, metavar="N", help="clients that send what is slow to read"
    )
    parser.add_argument(
        "--requests", type=int, default=0, metavar="N", help="random requests of the memory's curve"
    )
    parser.add_argument("--flags", default="", metavar="'--FLAG ...'", help="of `serve`")
    parser.add_argument(
        "--out", metavar="FILE.json", help="where to write the record (default: print it)"
    )
    args = parser.parse_args(argv)
    config = stored_config(args.workdir)
    lines = list(dict.fromkeys(pair[0] for pair in split_source(task_of(config), "test").read()))
    pair = config.data.source_language, config.data.target_language
    entries, beside, memory = [], [], []
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as file:
        file.write(f"{_KEY}\n")
        file.flush()
        flags = [f"--max-queue={2 * args.clients}", f"--api-keys={file.name}", *args.flags.split()]
        times = dict(clients=args.clients, seconds=args.seconds, key=_KEY)
        with served(args.workdir, *flags) as server:
            before, ready = args.seconds_before, server.started
            for _ in range(args.rounds):  # in turn, as the speed of a shared machine changes
                for found, hostile in ((beside, args.hostile), (entries, 0)):
                    if hostile or found is entries:
                        load = run_clients(
                            server.url, lines, pair, **times, before=before, hostile=hostile
                        )
                        found.append(entry_of(asyncio.run(load)))
                        before = _SETTLES
        if args.requests:
            with served(args.workdir, *flags) as server:
                memory = asyncio.run(memory_curve(server, lines, pair, args.requests, _KEY))
    record = {
        "what": f"serve under the load of {args.clients} clients, {shown_workdir(args.workdir)}",
        "command": command_of("serving", argv),
        "lines": len(lines),
        "server": entries,
        **({f"beside_{args.hostile}_hostile_clients": beside} if beside else {}),
        **({"memory_mib_per_1000_requests": memory} if memory else {}),
        "seconds_until_ready": round(ready, 1),
        "threads": threads(),
        "versions": {"python": platform.python_version()},
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main(sys.argv[1:])
