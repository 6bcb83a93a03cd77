"""Clients of a translation server: each sends a line, waits for its translation, and sends the next.

Plain asyncio streams instead of an HTTP library, because the clients share the machine's cores with the server.
"""

import asyncio
import dataclasses
import json
import time
import urllib.parse
from collections.abc import Sequence


@dataclasses.dataclass
class Load:
    """What the clients saw within the measured seconds. latencies: of answers with status 200. errors: by status or name of the
    exception. translations: the last one of each line.
    """

    seconds: float
    latencies: list[float] = dataclasses.field(default_factory=list)
    errors: dict[str, int] = dataclasses.field(default_factory=dict)
    translations: dict[str, str] = dataclasses.field(default_factory=dict)
    client_cpu_seconds: float = 0.0


def run(
    url: str, lines: Sequence[str], pair: tuple[str, str], *, clients: int, seconds: float, before: float, key: str = ""
) -> Load:
    """`clients` clients for `before` seconds that do not count and `seconds` that do. key: what they give as `api_key`."""
    return asyncio.run(_run(url, lines, pair, clients, seconds, before, key))


async def _run(url, lines, pair, clients, seconds, before, key) -> Load:
    host, port = urllib.parse.urlsplit(url).netloc.rsplit(":", 1)
    load, began, cpu = Load(seconds), time.monotonic() + before, time.process_time()
    tasks = [
        _client(
            (host.strip("[]"), int(port)), lines[i % len(lines) :] + lines[: i % len(lines)], pair, load, began, key
        )
        for i in range(clients)
    ]
    await asyncio.gather(*tasks)
    load.client_cpu_seconds = time.process_time() - cpu
    return load


async def _client(address, lines, pair, load: Load, began: float, key: str) -> None:
    end, number, connection = began + load.seconds, 0, None
    fields = {"source": pair[0], "target": pair[1]} | ({"api_key": key} if key else {})
    while (sent := time.monotonic()) < end:
        line = lines[number % len(lines)]
        number += 1
        try:
            if connection is None:
                connection = await asyncio.open_connection(*address)
            status, body = await _post(connection, {"q": line, **fields})
        except (OSError, asyncio.IncompleteReadError) as error:
            status, connection = type(error).__name__, None
        answered = time.monotonic()
        if not began <= answered <= end:
            continue
        if status == "200":
            load.latencies.append(answered - sent)
            load.translations[line] = json.loads(body)["translatedText"]
        else:
            load.errors[status] = load.errors.get(status, 0) + 1
            await asyncio.sleep(0.1)
    if connection is not None:
        connection[1].close()


async def _post(connection, content: dict[str, str]) -> tuple[str, bytes]:
    """(status, body)."""
    reader, writer = connection
    body = json.dumps(content).encode()
    writer.write(head_of("/translate", len(body)) + body)
    return await read_answer(reader)


def head_of(path: str, length: int | None) -> bytes:
    """The head of a POST of JSON; length: of its body, None = in pieces."""
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{size}\r\n\r\n".encode()


async def read_answer(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """(status, body)."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = int(head.partition("content-length:")[2].partition("\r\n")[0])
    return head.split()[1], await reader.readexactly(length)
