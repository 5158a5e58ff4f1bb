"""How many requests were refused at admission, by tenant and reason: one count per process, one sum per report. Pure.

A tenant is named only where its token was verified and the policy has it, and is forgotten with it: whoever may send requests
must not be able to invent names that stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from blockwarden_core.policy import TenantShare
from blockwarden_core.report import RefusalCount


class Refusals:
    """The refusals of one process since it started."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, reason: str, share: TenantShare | None = None) -> None:
        """One more, for a reason from a closed set: the code that the client is told."""
        self._counts["" if share is None else share.name, reason] += 1

    def since_start(self, tenants: Iterable[str]) -> tuple[RefusalCount, ...]:
        """All counts; those of tenants that are not in `tenants` are dropped for good."""
        known = {"", *tenants}
        for key in [key for key in self._counts if key[0] not in known]:
            del self._counts[key]
        return tuple(RefusalCount(tenant=tenant, reason=reason, count=count) for (tenant, reason), count in self._counts.items())


def add_refusals(*parts: Iterable[RefusalCount]) -> tuple[RefusalCount, ...]:
    """The sums of several processes' counts, in a stable order."""
    sums: Counter[tuple[str, str]] = Counter()
    for part in parts:
        for refusal in part:
            sums[refusal.tenant, refusal.reason] += refusal.count
    return tuple(RefusalCount(tenant=tenant, reason=reason, count=count) for (tenant, reason), count in sorted(sums.items()))
