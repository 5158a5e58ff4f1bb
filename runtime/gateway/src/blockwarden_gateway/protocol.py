"""HTTP/1.1 for connections that nobody has authenticated yet: a request's head is bounded in size and in time.

uvicorn bounds neither with httptools, so anybody could hold memory with an endless header, or sockets with a head that never
ends. Bodies are bounded by the application, which reads them after authentication.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class GuardedProtocol(HttpToolsProtocol):
    """Ends a connection whose next head is too large, or takes too long once it has begun."""

    max_head: ClassVar[int] = 64 << 10
    head_seconds: ClassVar[float] = 10.0

    _heads = 0
    _in_head = True
    _head_size = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        heads, in_head = self._heads, self._in_head
        super().data_received(data)
        if not (in_head and self._in_head) or self._heads != heads or self.transport.is_closing():
            return  # what was read is not, or not only, a piece of one head
        self._head_size += len(data)
        if self._head_size > self.max_head:
            self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        self._in_head, self._head_size = True, 0
        self._start_clock()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._heads += 1
        self._in_head = False
        self._stop_clock()
        super().on_headers_complete()

    def _start_clock(self) -> None:
        self._stop_clock()
        self._deadline = self.loop.call_later(self.head_seconds, self.transport.close)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
