"""How much one tenant may ask of one gateway pod. Pure: the clock is an argument.

Requests and tokens are counted over a sliding minute. Tokens are known only when an answer ends, so a request is admitted
while the minute's tokens are below the limit and counted in full afterwards: a tenant may overshoot by what is in flight,
and then waits for it.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from blockwarden_core.policy import Limits

from .errors import LimitReached

MINUTE: Final = 60.0


class Window:
    """Amounts of the last minute."""

    __slots__ = ("_entries", "total")

    def __init__(self) -> None:
        self._entries: deque[tuple[float, int]] = deque()
        self.total = 0

    def add(self, now: float, amount: int) -> None:
        if amount:
            self._entries.append((now, amount))
            self.total += amount

    def wait(self, now: float, limit: int) -> float:
        """Seconds until the minute's total is below `limit`; 0 where it is."""
        while self._entries and self._entries[0][0] <= now - MINUTE:
            self.total -= self._entries.popleft()[1]
        excess = self.total - limit
        for moment, amount in self._entries:
            if excess < 0:
                break
            excess -= amount
            if excess < 0:
                return moment + MINUTE - now
        return 0.0


class Usage:
    """One tenant's use of this pod."""

    __slots__ = ("concurrent", "requests", "tokens")

    def __init__(self) -> None:
        self.concurrent = 0
        self.requests = Window()
        self.tokens = Window()


class Limiter:
    """Use by tenant; tenants that leave the policy are forgotten by `keep`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._usage: defaultdict[str, Usage] = defaultdict(Usage)

    @contextmanager
    def admitted(self, tenant: str, limits: Limits) -> Iterator[None]:
        """Holds one place of the tenant's concurrency.

        Raises:
            LimitReached: with the whole seconds to wait.
        """
        usage, now = self._usage[tenant], self._clock()
        _check(usage, limits, now)
        usage.requests.add(now, 1)
        usage.concurrent += 1
        try:
            yield
        finally:
            usage.concurrent -= 1

    def spend(self, tenant: str, tokens: int) -> None:
        """Counts the tokens of an answer, prompt included."""
        self._usage[tenant].tokens.add(self._clock(), tokens)

    def keep(self, tenants: frozenset[str]) -> None:
        """Forgets idle tenants that are not in `tenants`."""
        for name in [name for name, usage in self._usage.items() if name not in tenants and not usage.concurrent]:
            del self._usage[name]


def _check(usage: Usage, limits: Limits, now: float) -> None:
    if limits.concurrent_requests is not None and usage.concurrent >= limits.concurrent_requests:
        raise LimitReached(
            f"{limits.concurrent_requests} requests of this tenant are running, which is its limit here", retry_after=1
        )
    for window, limit, what in (
        (usage.requests, limits.requests_per_minute, "requests"),
        (usage.tokens, limits.tokens_per_minute, "tokens"),
    ):
        wait = window.wait(now, limit) if limit is not None else 0.0
        if wait > 0:
            seconds = max(1, math.ceil(wait))
            raise LimitReached(f"the tenant's limit of {limit} {what} per minute is used up here", retry_after=seconds)
