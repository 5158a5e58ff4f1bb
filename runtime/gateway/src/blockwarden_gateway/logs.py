"""One JSON object per line on standard output. What is logged is named field by field: never a body, a header or a secret."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO

Value = str | int | float | bool | None


class Log:
    """Writes lines to a stream."""

    __slots__ = ("_stream",)

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self._stream = stream

    def write(self, event: str, **fields: Value) -> None:
        """One line: the time in Unix seconds, what happened, and its fields."""
        line = json.dumps({"time": round(time.time(), 3), "event": event, **fields}, separators=(",", ":"))
        self._stream.write(line + "\n")
        self._stream.flush()


class LogHandler(logging.Handler):
    """What libraries log, in the same form and without tracebacks: a traceback's last line may quote what a client sent."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else None
        message = record.getMessage().partition("\n")[0]  # asyncio puts the exception itself into the lines below
        self._log.write("library", logger=record.name, message=message, error=error)
