"""Tenants on their way out: gone from the policy, with requests that may still end by themselves.

A tenant that leaves the policy is refused at once and loses what it has cached. Requests that run go on for the policy's grace
period, on what nobody else is guaranteed: the new policy decides who owns the pool, the one before only what may be finished.
Pure; the clock is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from .quotas import Quota


@dataclass(frozen=True, slots=True)
class _Departure:
    """What a tenant had when it left, and when that was."""

    quota: Quota
    left_at: float


class Departures:
    """Who left, and until when its requests may run.

    Attributes:
        due: when the next grace period is over; infinite when nobody is on its way out.
    """

    def __init__(self) -> None:
        self.due = math.inf
        self._quotas: Mapping[str, Quota] = {}
        self._left: dict[str, _Departure] = {}

    def plan(self, quotas: Mapping[str, Quota], *, pool: int, grace: float, now: float) -> dict[str, Quota]:
        """The quotas, beside `quotas`, of tenants whose requests may still run.

        Each keeps its limit, and of its guarantee what the guarantees in `quotas` leave of the pool; whoever left first is served
        first. A tenant that is back in `quotas` is on its way no more. Call it again once `due` is over.

        Args:
            quotas: of the policy that is taken into force.
            pool: blocks, the null block not counted.
            grace: seconds from a tenant's departure, however many policies ago, until its requests are ended.
            now: seconds of a clock that never goes back.
        """
        for name in self._quotas.keys() - quotas.keys():
            self._left[name] = _Departure(self._quotas[name], now)
        self._quotas = dict(quotas)
        self._left = {
            name: departure for name, departure in self._left.items() if name not in quotas and now < departure.left_at + grace
        }
        self.due = min((departure.left_at + grace for departure in self._left.values()), default=math.inf)
        rest = pool - sum(quota.guaranteed for quota in quotas.values())
        kept: dict[str, Quota] = {}
        for name, departure in self._left.items():
            guaranteed = min(departure.quota.guaranteed, rest)
            rest -= guaranteed
            kept[name] = replace(departure.quota, guaranteed=guaranteed)
        return kept
