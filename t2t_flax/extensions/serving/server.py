"""A listening socket and uvicorn."""

import contextlib
import ipaddress
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn
from fastapi import FastAPI

from t2t_flax.distributed.signals import on_stop_signals
from t2t_flax.errors import FAILURE, OK, UserError
from t2t_flax.extensions.serving.model import ServedModel

SWITCH_SECONDS = 0.001
"""Seconds that a thread with a large request may keep the others waiting."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one.

    Raises UserError if the address cannot be used.
    """
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        both = family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(address[:2], family=family, backlog=2048, dualstack_ipv6=both)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"--host={host} --port={port} cannot be used: {reason}. Give another one."
        ) from None


def url(listening: socket.socket) -> str:
    """Return the address of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def hosts_of(listening: socket.socket) -> list[str]:
    """Return the host names that requests may use.

    Any name may be used, unless the server listens on this machine alone.
    """
    address = ipaddress.ip_address(listening.getsockname()[0])
    return ["localhost", "127.0.0.1", "[::1]", str(address)] if address.is_loopback else ["*"]


def trusted_proxies(names: str) -> list[str]:
    """Return addresses and networks of proxies.

    IPv4 ones also have their IPv6 socket form.
    """
    found = [name.strip() for name in names.split(",")]
    for name in [*found]:
        with contextlib.suppress(ValueError):
            network = ipaddress.ip_network(name)
            if network.version == 4:
                found.append(f"::ffff:{network.network_address}/{96 + network.prefixlen}")
    return found


def serve(
    make_app: Callable[[Callable[[], None]], FastAPI],
    models: Sequence[ServedModel],
    listening: socket.socket,
    timeout: int,
) -> int:
    """Serve until SIGTERM, SIGHUP or Ctrl-C.

    Then the requests that have come are answered within `timeout` seconds. Raises the error of a
    model.

    Args:
        make_app: returns the application; its argument ends the server.

    Returns:
        The exit code.
    """

    def end() -> None:
        server.should_exit = True

    app = make_app(end)
    proxies = trusted_proxies(os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1,::1"))
    options: dict[str, Any] = dict(
        log_config=None, access_log=False, ws="none", forwarded_allow_ips=proxies
    )
    config = uvicorn.Config(app, timeout_graceful_shutdown=timeout, **options)
    sys.setswitchinterval(SWITCH_SECONDS)
    server = uvicorn.Server(config)
    # uvicorn passes signals on when it has stopped: here, where they do nothing.
    with on_stop_signals(lambda number: end()):
        server.run([listening])
    for model in models:
        if isinstance(model.error, Exception):
            raise model.error
        if model.error:
            raise RuntimeError(f"a thread of {model.name} has ended") from model.error
    busy = [model for model in models if not model.stop(0.0)]
    if not busy:
        return OK
    hanging = [model.name for model in busy if model.busy]
    if hanging:
        print(
            f"t2t_flax serve: the device did not finish the batches of {', '.join(hanging)}.",
            file=sys.stderr,
        )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FAILURE if hanging else OK)  # Python would wait for the device
