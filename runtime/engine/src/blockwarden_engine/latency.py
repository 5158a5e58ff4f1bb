"""How long a freed block takes to be clean again, in steps and in seconds. Pure; the clock is an argument.

Blocks freed between two looks at the clock are one batch, so that a block costs one addition here, and batches are few.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

STEP_BOUNDS: Final = (1, 2, 3, 4, 6, 8, 16, 32)
SECOND_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """Counts of observations up to each bound.

    Attributes:
        bounds: upper ends, ascending; what is above the last counts in one more place.
        counts: observations by bound, each counted once.
        total: sum of all observations.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total = tuple(bounds), [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float, times: int) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


@dataclass(slots=True)
class _Batch:
    """Blocks that were freed at the same time."""

    blocks: int
    step: int
    at: float


class FreeToClean:
    """Follows blocks from being freed over the order of their scrub to its acknowledgement.

    A block is scrubbed in the order in which it was freed, so blocks need no names here. Steps are counted by the orders that go
    down with them: a block that the next step scrubs and acknowledges took one.

    Attributes:
        steps, seconds: the latencies of all blocks acknowledged so far.
    """

    def __init__(self) -> None:
        self.steps, self.seconds = Histogram(STEP_BOUNDS), Histogram(SECOND_BOUNDS)
        self._step, self._now = 0, 0.0
        self._open = _Batch(0, 0, 0.0)
        self._freed: deque[_Batch] = deque()
        self._ordered: dict[int, list[_Batch]] = {}

    def look(self, now: float) -> None:
        """Tells the time, in seconds of a clock that never goes back."""
        self._now = now
        self._close()

    def free(self) -> None:
        """One more block waits to be scrubbed."""
        self._open.blocks += 1

    def order(self, epoch: int, blocks: int) -> None:
        """A step goes down, with an order (epoch 0: without one) to scrub those `blocks` blocks that were freed first."""
        self._step += 1
        self._close()
        batches = self._ordered[epoch] = []
        while blocks > 0:
            batch = self._freed[0]
            part = min(blocks, batch.blocks)
            batches.append(_Batch(part, batch.step, batch.at))
            batch.blocks -= part
            blocks -= part
            if not batch.blocks:
                self._freed.popleft()
        if not batches:
            del self._ordered[epoch]

    def confirm(self, epoch: int) -> None:
        """An order's blocks are clean."""
        for batch in self._ordered.pop(epoch):
            self.steps.observe(self._step - batch.step, batch.blocks)
            self.seconds.observe(self._now - batch.at, batch.blocks)

    def _close(self) -> None:
        if self._open.blocks:
            self._freed.append(self._open)
            self._open = _Batch(0, self._step, self._now)
        else:
            self._open.step, self._open.at = self._step, self._now
