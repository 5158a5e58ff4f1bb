"""The keyed work queue between kopf's events and reconcile: many events of one object become one reconcile, an object is never
reconciled twice at once, failures back off, and time-driven work comes back when it asked to.

`KeyQueue` is the whole logic and knows no clock; `QueueRunner` is the thin asynchronous shell around it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

BACKOFF_FIRST: Final = 1.0
BACKOFF_LIMIT: Final = 300.0
IDLE_WAIT: Final = 10.0
"""The longest the queue sleeps without looking: the heartbeat's period."""

Key = tuple[str, str]
"""Namespace and name of a TenantPolicy."""


@dataclass(slots=True)
class KeyQueue:
    """Keys and when they are due. Times are seconds of any one clock."""

    _due: dict[Key, float] = field(default_factory=dict)
    _running: set[Key] = field(default_factory=set)
    _failures: dict[Key, int] = field(default_factory=dict)

    def add(self, key: Key, at: float) -> None:
        """Ask for a reconcile of `key` not before `at`; of several asks the earliest counts."""
        self._due[key] = min(at, self._due.get(key, at))

    def take(self, now: float) -> Key | None:
        """The longest-due key that nobody works on, which the caller then works on until `done` or `failed`."""
        ready = [(due, key) for key, due in self._due.items() if due <= now and key not in self._running]
        if not ready:
            return None
        key = min(ready)[1]
        del self._due[key]
        self._running.add(key)
        return key

    def done(self, key: Key, *, again_at: float | None) -> None:
        """The reconcile succeeded. An event that came meanwhile stays due."""
        self._running.discard(key)
        self._failures.pop(key, None)
        if again_at is not None:
            self.add(key, again_at)

    def failed(self, key: Key, now: float, *, jitter: float) -> float:
        """The reconcile failed: due again after a backoff, which is returned. `jitter` in [0, 1) spreads restarts.

        An event that came meanwhile does not shorten the backoff: it is most likely the failure's own echo.
        """
        self._running.discard(key)
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = min(BACKOFF_LIMIT, BACKOFF_FIRST * 2.0 ** min(failures - 1, 16)) * (1 + jitter / 4)
        self._due[key] = now + delay
        return delay

    def next_due(self) -> float | None:
        """When the next idle key is due."""
        return min((due for key, due in self._due.items() if key not in self._running), default=None)

    def __len__(self) -> int:
        return len(self._due.keys() | self._running)


Work = Callable[[Key], Awaitable[float | None]]
"""Reconciles a key and returns after how many seconds it wants to be called again; raises on failure."""


@dataclass(slots=True)
class QueueRunner:
    """Runs a KeyQueue with at most `workers` reconciles at a time.

    `on_failure` hears of every exception and decides what is logged; `on_beat` is called whenever the loop goes round.
    """

    work: Work
    clock: Callable[[], float]
    jitter: Callable[[], float]
    on_failure: Callable[[Key, Exception, float], None]
    on_beat: Callable[[], None] = lambda: None
    workers: int = 4
    queue: KeyQueue = field(default_factory=KeyQueue)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def add(self, key: Key, delay: float = 0.0) -> None:
        """Ask for a reconcile; callable from any coroutine of the loop."""
        self.queue.add(key, self.clock() + delay)
        self._wake.set()

    async def run(self) -> None:
        """Work until cancelled; then the reconciles in progress are cancelled too: each can be resumed."""
        try:
            while True:
                self.on_beat()
                self._wake.clear()
                while len(self._tasks) < self.workers and (key := self.queue.take(self.clock())) is not None:
                    task = asyncio.create_task(self._one(key))
                    self._tasks.add(task)
                    task.add_done_callback(self._ended)
                await self._sleep()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _sleep(self) -> None:
        due = self.queue.next_due()
        full = len(self._tasks) >= self.workers
        wait = IDLE_WAIT if due is None or full else min(IDLE_WAIT, max(0.0, due - self.clock()))
        with contextlib.suppress(TimeoutError):
            # Not wait_for: Python 3.11's swallows a cancellation that meets the event, and the loop would not end.
            async with asyncio.timeout(wait):
                await self._wake.wait()

    async def _one(self, key: Key) -> None:
        try:
            again = await self.work(key)
        except Exception as error:  # whatever went wrong with one object must not stop the others
            delay = self.queue.failed(key, self.clock(), jitter=self.jitter())
            self.on_failure(key, error, delay)
        else:
            self.queue.done(key, again_at=None if again is None else self.clock() + again)

    def _ended(self, task: asyncio.Task[None]) -> None:
        # Only now the worker is free: waking the loop any earlier would find it still full.
        self._tasks.discard(task)
        self._wake.set()
