"""A steady client: one short request after another until stopped, with every failure kept.

Runs beside a rotation, to show that no request is lost by it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException

from stack.client import Client


@dataclass
class Record:
    """What the client saw so far."""

    answered: int = 0
    failures: list[str] = field(default_factory=list)


@contextmanager
def steady_client(client: Client, model: str, *, pause: float = 0.2) -> Iterator[Record]:
    """Keeps asking while the block runs, and stops after it; the record is complete then."""
    record, stop = Record(), threading.Event()

    def ask() -> None:
        while not stop.is_set():
            try:
                answer = client.chat(model, "Say yes.", max_tokens=4)
            except (OSError, HTTPException, ValueError) as error:  # a thread that died would look like a client without failures
                record.failures.append(f"{type(error).__name__}: {error}")
            else:
                if answer.status == 200 and answer.text and answer.whole:
                    record.answered += 1
                else:
                    record.failures.append(f"status {answer.status}: {answer.body or answer.text[:200]!r}")
            time.sleep(pause)

    thread = threading.Thread(target=ask, name="steady-client", daemon=True)
    thread.start()
    try:
        yield record
    finally:
        stop.set()
        thread.join(timeout=client.timeout)
        if thread.is_alive():
            record.failures.append("the last request did not end")
