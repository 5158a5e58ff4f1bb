"""Server-sent events as an engine streams them: an incremental parser, and the two lines that make an event. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .errors import Broken

DONE: Final = b"[DONE]"
MAX_EVENT: Final = 8 << 20


class EventParser:
    """Bytes in, the data of complete events out. Names, ids and comments of events are dropped: engines send none that count."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The data of each event that `chunk` completes.

        Raises:
            Broken: an event of more than MAX_EVENT bytes.
        """
        *events, self._rest = (self._rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(self._rest) > MAX_EVENT:
            raise Broken("an event of the engine's stream is too large")
        for event in events:
            data = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            if data:
                yield b"\n".join(data)


def event(data: bytes) -> bytes:
    """`data` as one event; it must hold no line break (JSON from an encoder holds none)."""
    return b"data: " + data + b"\n\n"
