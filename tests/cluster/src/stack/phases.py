"""Phases with their times: long work says what it is doing, and how long each part took."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """Prints each phase as it begins and ends, and the summary of all at the end."""

    def __init__(self) -> None:
        self.times: list[tuple[str, float]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """One phase; its time counts even when it fails."""
        say(f"\n── {name}")
        started = time.monotonic()
        try:
            yield
        finally:
            self.times.append((name, time.monotonic() - started))
            say(f"   {self.times[-1][1]:.0f} s")

    def summary(self) -> str:
        """One line for each phase and one for all."""
        lines = [f"{name:<44} {seconds:>7.0f} s" for name, seconds in self.times]
        return "\n".join([*lines, f"{'in all':<44} {sum(seconds for _, seconds in self.times):>7.0f} s"])


def say(text: str) -> None:
    """Prints at once, also into a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
