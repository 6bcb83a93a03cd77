"""Connections that owe the server something do not keep it from the others: uvicorn's protocol with a time limit for the head of
a request and for reading an answer, and with room for a new connection at any time.
"""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""From the beginning of a connection, or the end of an answer, to the end of the head of the next request."""


class Connection(H11Protocol):
    """A connection. since: the loop's time at which it was made or its last answer was complete."""

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
