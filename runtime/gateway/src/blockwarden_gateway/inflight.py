"""How many dispatched requests are not yet answered, by the tenant and generation of their salt.

An operator that rotates a salt waits for the old generation's count to reach zero, so a request is counted in the same step
that derives its salt and until its last byte is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from .salting import Salted


class InFlight:
    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()

    @contextmanager
    def counted(self, salted: Salted) -> Iterator[None]:
        key = (salted.tenant, salted.generation)
        self._counts[key] += 1
        try:
            yield
        finally:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]

    @property
    def by_tenant(self) -> dict[str, dict[str, int]]:
        """Counts by tenant, then by generation as a string."""
        counts: dict[str, dict[str, int]] = {}
        for (tenant, generation), count in self._counts.items():
            counts.setdefault(tenant, {})[str(generation)] = count
        return counts
