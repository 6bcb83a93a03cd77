"""Runs the application: a listening socket, the models' threads, and an end in order."""

import asyncio
import errno
import faulthandler
import ipaddress
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from t2t_flax.errors import FAILURE, OK, UserError
from t2t_flax.extensions.serving.compiling import Compiler
from t2t_flax.extensions.serving.model import ServedModel
from t2t_flax.extensions.serving.programs import program_folder
from t2t_flax.extensions.shared.processes import on_stop_signal
from t2t_flax.training import precision

HEAD_SECONDS = 10.0
"""From the beginning of a connection, or the end of an answer, to the end of the head of the next request."""
_MAX_CONNECTIONS = 512
"""The one that has waited longest for its client makes room for another."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one, :: also listens to IPv4. Raises UserError if the address cannot be used."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        both = family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(address[:2], family=family, backlog=2048, dualstack_ipv6=both)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                f"port {port} of {host} is in use: stop the program that has it, or give --port=N."
            ) from None
        raise UserError(
            f"cannot listen on {host}, port {port}: {error.strerror}. Give another --host or --port."
        ) from None
    except UnicodeError:
        raise UserError(f"--host={host} is not the name or address of a host.") from None


def url(listening: socket.socket) -> str:
    """The address of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def hosts_of(listening: socket.socket) -> list[str]:
    """The names that requests may call the server by: those of this machine if it listens on it alone, else any."""
    address = ipaddress.ip_address(listening.getsockname()[0])
    return ["localhost", "127.0.0.1", "[::1]", str(address)] if address.is_loopback else ["*"]


class Connection(H11Protocol):
    """uvicorn's, with time limits for the head of a request and for reading an answer, and room for a new one at any time: those
    that owe the server something do not keep it from others.

    since: the loop's time at which it was made or its last answer was complete.
    """

    since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since = self.loop.time()
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            waiting = [connection for connection in self.connections if connection.waits]
            # First those that never sent a request, then clients that come back.
            min(waiting, key=lambda connection: (connection.cycle is not None, connection.since)).abort()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    @property
    def waits(self) -> bool:
        """Whether the client has still to send a request, or to read its answer."""
        return self.cycle is None or self.cycle.response_complete or self.conn.their_state is h11.SEND_BODY

    def is_overdue(self, timeout: float) -> bool:
        """Whether the client has sent no head within its time, or not read an answer within `timeout` seconds."""
        limit = timeout if self.transport.get_write_buffer_size() else HEAD_SECONDS
        idle = self.cycle is None or self.cycle.response_complete
        return idle and self.loop.time() - self.since > limit

    def abort(self) -> None:
        """Closes the connection at once."""
        self.connections.discard(self)
        self.transport.abort()


class Server(uvicorn.Server):
    """uvicorn, which closes connections that are overdue, and all of them when its time is up.

    drain: seconds after SIGTERM for which everything is answered, but `on_drain` has been called. timeout: seconds from then, or
    from Ctrl-C, to the end. on_end: called at the first signal with the seconds until the promised end.
    """

    def __init__(self, config: uvicorn.Config, timeout: float, drain: float = 0.0):
        super().__init__(config)
        self.timeout, self.drain = timeout, drain
        self.on_drain: Callable[[], object] = lambda: None
        self.on_end: Callable[[float], object] = lambda seconds: None
        self._ended: float | None = None
        self._drained = math.inf

    async def on_tick(self, counter: int) -> bool:
        if time.monotonic() >= self._drained:
            self.should_exit = True
        if counter % 10 == 0:  # a second
            for connection in [each for each in self.server_state.connections if each.is_overdue(self.timeout)]:
                connection.abort()
        return await super().on_tick(counter)

    def end(self) -> None:
        """Takes no more requests and answers those it has."""
        self.should_exit = True
        self._end_after(0.0)

    def _end_after(self, drain: float) -> None:
        if self._ended is None:
            self._ended = time.monotonic() + drain
            self.on_drain()
            self.on_end(drain + self.timeout)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGTERM and self.drain and self._ended is None:
            self._drained = time.monotonic() + self.drain
            self._end_after(self.drain)
            return
        super().handle_exit(sig, frame)  # a second SIGINT ends without waiting
        self.end()

    @property
    def seconds_left(self) -> float:
        """Until the promised end, less what the process itself needs for it."""
        now = time.monotonic()
        left = min(now, self._ended or now) + self.timeout - min(1.0, self.timeout / 4) - now
        return min(1.0, left) if self.force_exit else left

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Half a second before uvicorn cancels what remains, which leaves a traceback in the log.
        left = max(0.0, self.seconds_left)
        self.config.timeout_graceful_shutdown = left  # type: ignore[assignment]
        closing = asyncio.get_running_loop().call_later(max(left / 2, left - 0.5), self._close_connections)
        await super().shutdown(sockets)
        closing.cancel()

    def _close_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def make_server(
    app: FastAPI,
    timeout: float,
    max_connections: int = _MAX_CONNECTIONS,
    *,
    drain: float = 0.0,
    proxies: Sequence[str] = (),
) -> Server:
    """uvicorn without its logs; models are started and stopped by the caller. timeout, drain: see `Server`; timeout also of a
    client that does not read its answer. proxies: addresses and networks whose X-Forwarded-For tells the client's address.
    """
    options: dict[str, Any] = dict(ws="none", lifespan="off", log_config=None, access_log=False, server_header=False)
    forwarded: dict[str, Any] = dict(proxy_headers=bool(proxies), forwarded_allow_ips=list(proxies))
    config = uvicorn.Config(app, http=Connection, limit_concurrency=max_connections, **options, **forwarded)
    server = Server(config, timeout, drain)
    server.on_drain = app.state.service.stop
    return server


def serve(
    app: FastAPI,
    models: Sequence[ServedModel],
    listening: socket.socket,
    timeout: float,
    *,
    drain: float = 0.0,
    proxies: Sequence[str] = (),
) -> NoReturn:
    """Serves until SIGTERM or SIGINT: then takes no more requests, after SIGTERM not before `drain` seconds, answers those it
    has, and ends the process within `timeout` seconds; a second Ctrl-C does not wait for clients. Raises what a model raised.
    Exit code 0, or 1 where a model did not end.
    """
    server, compiler = make_server(app, timeout, drain=drain, proxies=proxies), Compiler(program_folder())
    first = threading.Lock()
    # Whatever this process is then doing: the thread that ends it needs nothing of Python.
    spare = min(0.25, timeout / 8)
    server.on_end = lambda s: faulthandler.dump_traceback_later(s - spare, exit=True, file=sys.__stderr__)

    def ready(model: ServedModel) -> None:
        described = model.describe()
        steps = " and ".join(map(str, described["steps"]))
        print(f"{model.name}: ready (step {steps}; {described['engine']})", file=sys.stderr, flush=True)
        if faster := precision.advice(model.config, decoding=True):
            print(faster, file=sys.stderr, flush=True)
        if all(model.ready for model in models) and first.acquire(blocking=False):
            compiler.begin()
            for each in models:
                each.compile_rest(server.end)

    # uvicorn passes the signals on when it has stopped: here, where they only set the same flag again, as do further ones.
    with on_stop_signal(server.end):
        try:
            for model in models:
                model.start(ready, server.end, compiler.wait)
            server.run([listening])
        finally:
            server.end()
            compiler.stop()
            ended = [model.stop(max(0.0, server.seconds_left)) for model in models]
            compiler.close()
    if all(ended):
        faulthandler.cancel_dump_traceback_later()
    for model in models:
        if isinstance(model.error, Exception):
            raise model.error
        if model.error:
            raise RuntimeError(f"a thread of {model.name} has ended") from model.error
    if not all(ended):
        print("t2t_flax serve: the device did not finish within the time: ending without it.", file=sys.stderr)
    # Without the end of the interpreter and of JAX, which take their time and have nothing left to do.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(OK if all(ended) else FAILURE)
