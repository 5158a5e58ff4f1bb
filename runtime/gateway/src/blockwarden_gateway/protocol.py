"""HTTP/1.1 for connections that nobody has authenticated yet: what is neither a body nor a whole head is bounded.

uvicorn bounds none of it with httptools, so anybody could hold memory with an endless header (or, behind a chunked body, an
endless trailer), or sockets with a head that never ends. Bodies are bounded by the application, which reads them after
authentication.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class GuardedProtocol(HttpToolsProtocol):
    """Ends a connection whose next head is too large, or takes too long once it has begun."""

    max_head: ClassVar[int] = 64 << 10
    """Also the most that may come between two pieces of a body, and as its trailers."""
    head_seconds: ClassVar[float] = 10.0

    _progress = 0
    _in_head = True
    _without_progress = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self._progress
        super().data_received(data)
        if self._progress != before or self.transport.is_closing():
            return
        self._without_progress += len(data)
        if self._without_progress > self.max_head:
            self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        self._in_head, self._without_progress = True, 0
        self._start_clock()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers mean nothing here, and uvicorn would keep them
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._made_progress()
        self._in_head = False
        self._stop_clock()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._made_progress()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._made_progress()
        super().on_message_complete()

    def _made_progress(self) -> None:
        self._progress += 1
        self._without_progress = 0

    def _start_clock(self) -> None:
        self._stop_clock()
        self._deadline = self.loop.call_later(self.head_seconds, self.transport.close)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
