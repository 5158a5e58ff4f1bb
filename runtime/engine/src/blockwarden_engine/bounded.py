"""HTTP/1.1 for connections that nobody has authenticated: what one request may send, and how long it may take to, is bounded.

uvicorn bounds neither with httptools, so whoever reaches the port could hold memory with an endless header or a socket with
a head that never ends.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class BoundedProtocol(HttpToolsProtocol):
    """Ends a connection whose request, head and body together, is too large or does not come to its end."""

    max_request: ClassVar[int] = 16 << 10
    """In bytes; a reading that ends one request and begins the next counts for the first."""
    request_seconds: ClassVar[float] = 10.0
    """From the connection or the first byte of a request to the request's last byte."""

    _received = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > self.max_request:
            self.send_400_response("The request is too large.")
        elif not self.transport.is_closing():
            super().data_received(data)

    def on_message_begin(self) -> None:
        self._start_clock()
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._received = 0
        self._stop_clock()
        super().on_message_complete()

    def _start_clock(self) -> None:
        self._stop_clock()
        self._deadline = self.loop.call_later(self.request_seconds, self.transport.close)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
