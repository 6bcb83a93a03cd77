"""Clients that harm a translation server, each kind in a process of its own that gives way to others (`nice`):

    python -m benchmarks.http_abuse URL KIND

until a signal ends it.
"""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator

from benchmarks.environments import variables
from benchmarks.http_load import head_of, read_answer

_WORDS = "the old man sees a small dog in front of the house and the woman hears the song of the bird".split()


async def invalid_megabytes(address, number: int) -> None:
    """Bodies of a megabyte, announced and in pieces, and of just below the usual limit, none of which is right."""
    for size, announced in itertools.cycle(((2**20, True), (2**20, False), (250_000, True))):
        items = b"1," * (size // 2) if number % 2 else b"{}," * (size // 3)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await _send(address, b'{"q":[' + items + b"1]}", announced)


async def hanging_headers(address, number: int) -> None:
    """The head of a request, of which a byte a second arrives."""
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(*address)
            with contextlib.closing(writer):
                writer.write(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nX: ")
                while not writer.is_closing():
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(1)
        await asyncio.sleep(0.5)


async def dropped_uploads(address, number: int) -> None:
    """Half of the body that was announced, then the end of the connection."""
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(*address)
            with contextlib.closing(writer):
                writer.write(head_of("/translate", 200_000) + b" " * 100_000)
                await writer.drain()
                await asyncio.sleep(0.05)


async def all_shapes(address, number: int) -> None:
    """Right requests of every size: lines, tokens, hypotheses, forced beginnings, scores, attention."""
    sizes = [2, 6, 12, 24, 40, 60, 90, 150, 300, 700]
    cases = list(itertools.product(sizes, (1, 3, 12, 40), (1, 4), ("", "Der"), ("translate", "score", "attention")))
    for words, lines, n_best, prefix, kind in itertools.islice(itertools.cycle(cases), 37 * number, None):
        text = " ".join(itertools.islice(itertools.cycle(_WORDS), words))
        lines = max(1, min(lines, 3000 // words))
        body = {"source": text, "target": text}
        if kind == "translate":
            body = {"text": [text] * lines, "n_best": n_best, "prefix": [prefix] * lines}
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await _send(address, json.dumps(body).encode(), True, f"/api/{kind}")


KINDS = {
    invalid_megabytes.__name__: (invalid_megabytes, 8),
    hanging_headers.__name__: (hanging_headers, 600),
    dropped_uploads.__name__: (dropped_uploads, 16),
    all_shapes.__name__: (all_shapes, 4),
}
"""Each kind's client and how many of them there are: more of those that hang than the server has connections."""


@contextlib.contextmanager
def abuse(url: str, kind: str) -> Iterator[None]:
    """Clients of this kind, or none for "", within the block."""
    if not kind:
        yield
        return
    command = [sys.executable, "-m", "benchmarks.http_abuse", url, kind]
    with subprocess.Popen(command, env=variables()) as process:
        try:
            yield
            assert process.poll() is None, f"the clients of {kind} have ended"
        finally:
            process.kill()


async def _send(address, body: bytes, announced: bool, path: str = "/translate") -> None:
    reader, writer = await asyncio.open_connection(*address)
    with contextlib.closing(writer):
        writer.write(head_of(path, len(body) if announced else None))
        if not announced:
            writer.write(b"%x\r\n" % len(body))
        writer.write(body)
        await read_answer(reader)


async def _run(url: str, kind: str) -> None:
    host, port = urllib.parse.urlsplit(url).netloc.rsplit(":", 1)
    client, count = KINDS[kind]
    address = host.strip("[]"), int(port)
    await asyncio.gather(*(client(address, number) for number in range(count)))


if __name__ == "__main__":
    os.nice(19)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asyncio.run(_run(*sys.argv[1:]))
