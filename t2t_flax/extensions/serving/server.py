"""Runs the application: a listening socket, the models' threads, and an end in order."""

import asyncio
import errno
import math
import socket
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from t2t_flax.errors import UserError
from t2t_flax.extensions.serving.model import ServedModel
from t2t_flax.process_setup import on_stop_signal


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises UserError if the address cannot be used."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
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


class Server(uvicorn.Server):
    """uvicorn, of which the end of its time or a second signal closes all connections."""

    _loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and self._loop:
            self.force_exit = True
            self._loop.call_soon_threadsafe(self._close_connections)
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Half a second before uvicorn cancels what remains, which leaves a traceback in the log.
        delay = (self.config.timeout_graceful_shutdown or 0) - 0.5
        closing = asyncio.get_running_loop().call_later(delay, self._close_connections)
        await super().shutdown(sockets)
        closing.cancel()

    def _close_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def make_server(app: FastAPI, timeout: float) -> Server:
    """uvicorn without its logs; models are started and stopped by the caller. At the end its clients have `timeout` seconds,
    that of a request, and one more to take their answers: one that reads nothing must not keep the process.
    """
    options: dict[str, Any] = dict(
        http="h11", ws="none", lifespan="off", log_config=None, access_log=False, server_header=False
    )
    return Server(uvicorn.Config(app, **options, timeout_graceful_shutdown=math.ceil(timeout) + 1))


def serve(app: FastAPI, models: Sequence[ServedModel], listening: socket.socket, timeout: float) -> None:
    """Serves until SIGTERM or SIGINT: then takes no more requests, answers those it has, for at most about `timeout` seconds,
    and returns; a second signal closes the connections. Raises what a model raised while it was loaded.
    """
    server = make_server(app, timeout)

    def end() -> None:
        server.should_exit = True

    def ready(model: ServedModel) -> None:
        described = model.describe()
        steps = " and ".join(map(str, described["steps"]))
        print(f"{model.name}: ready (step {steps}; {described['engine']})", file=sys.stderr, flush=True)

    try:
        for model in models:
            model.start(ready, end)
        # uvicorn passes the signals on when it has stopped: here, where they only set the same flag again.
        with on_stop_signal(end):
            server.run([listening])
    finally:
        for model in models:
            model.stop()
    for model in models:
        if model.error:
            raise model.error
