"""Parts that are wrong on purpose, each in one way that would break isolation or a quota. The state machine must catch them all:
`TWINS`, at the end, is the list.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from blockwarden_tests_pool_world import Parts

from blockwarden_engine.departures import Departures
from blockwarden_engine.domains import Domain, Tenant
from blockwarden_engine.errors import MismatchedAck
from blockwarden_engine.fairness import UNLIMITED, Fairness, Flow
from blockwarden_engine.ledger import CACHED, CLEAN, IN_USE, Ledger, Taken
from blockwarden_engine.quotas import Quota


class NoScrub(Ledger):
    """A released block is clean at once."""

    def release(self, block: int, *, keep: bool) -> bool:
        kept = super().release(block, keep=keep)
        if not kept:
            self.dirty.remove(block)
            self._state[block] = CLEAN
            self._clean.append(block)
        return kept


class EarlyClean(Ledger):
    """A block is clean when its scrub is ordered, not when it is acknowledged."""

    def order_scrub(self) -> tuple[int, list[int]]:
        epoch, blocks = super().order_scrub()
        if epoch:
            super().acknowledge(epoch, len(blocks))
            self._believed = {**getattr(self, "_believed", {}), epoch: len(blocks)}
        return epoch, blocks

    def acknowledge(self, epoch: int, count: int) -> None:
        believed: dict[int, int] = getattr(self, "_believed", {})
        if next(iter(believed.items()), None) != (epoch, count):
            raise MismatchedAck("an acknowledgement of another order")
        del believed[epoch]


class BelievesAnyAck(Ledger):
    """An acknowledgement of whatever epoch and count cleans the oldest order."""

    def acknowledge(self, epoch: int, count: int) -> None:
        if self._ordered:
            oldest = next(iter(self._ordered))
            super().acknowledge(oldest, len(self._ordered[oldest]))


class CrossScopeTouch(Ledger):
    """A hit is not checked against the owner of the block."""

    def hit(self, domain: Domain, block: int) -> None:
        owner = self.domains[block]
        if owner is not None and self._state[block] == CACHED:
            self._uncache(owner, block)


class CrossScopeRecycle(Ledger):
    """A tenant's oldest cached block is recycled for whichever of its domains asks."""

    def take(self, domain: Domain, count: int) -> Taken:
        donors = [block for block in domain.tenant.lru if self.domains[block] is not domain]
        if donors and 1 <= count <= self.allocatable(domain):
            taken = super().take(domain, count - 1)
            block, owner = donors[0], self.domains[donors[0]]
            if owner is not None:
                self._uncache(owner, block)
                owner.owned -= 1
                domain.owned += 1
                self.domains[block] = domain
            return Taken(taken.fresh, [*taken.recycled, block])
        return super().take(domain, count)


class CrossTenantEviction(Ledger):
    """Whoever is short evicts any other tenant's cache, guaranteed or not."""

    def _reclaim(self, domain: Domain, count: int) -> list[int]:
        others = [tenant for tenant in self.tenants.values() if tenant is not domain.tenant and tenant.lru]
        return [block for tenant in others for block in self._evict(list(islice(tenant.lru, count)))]


class BorrowsWhatIsGuaranteed(Ledger):
    """A tenant may take any clean block up to its limit."""

    def _allowance(self, tenant: Tenant, clean: int) -> int:
        return max(0, min(clean, tenant.limit - tenant.owned))


class NegativeCount(Ledger):
    """A negative count of blocks is taken at its word."""

    def take(self, domain: Domain, count: int) -> Taken:
        if count < 0:
            self._count(domain.tenant, count)
            domain.owned += count
            return Taken([], [])
        return super().take(domain, count)


class KeepsRetiredCache(Ledger):
    """Blocks of an older salt generation stay cached."""

    def release(self, block: int, *, keep: bool) -> bool:
        domain = self.domains[block]
        if keep and domain is not None and self._state[block] == IN_USE:
            self._state[block] = CACHED
            domain.lru[block] = None
            domain.tenant.lru[block] = None
            self.cached += 1
            return True
        return super().release(block, keep=False)


class ForgetsStaleEarly(Ledger):
    """A stale block no longer counts once it is dirty."""

    def _soil(self, domain: Domain, block: int) -> None:
        super()._soil(domain, block)
        if (generation := self._unzeroed[block]) is not None:
            self._unzeroed[block] = None
            generation.unzeroed -= 1


class KeepsTheQuotaOfWhoLeft(Ledger):
    """A tenant that left keeps its quota after its last request is gone."""

    def _end(self, tenant: Tenant) -> None:
        pass


class CachesForWhoLeft(Ledger):
    """What a tenant that left releases stays cached, for whoever comes back under its name."""

    def release(self, block: int, *, keep: bool) -> bool:
        domain = self.domains[block]
        if keep and domain is not None and domain.tenant.draining:
            domain.tenant.registered = True
            kept = super().release(block, keep=keep)
            domain.tenant.registered = False
            return kept
        return super().release(block, keep=keep)


class ResetWithoutScrub(Ledger):
    """A reset of the prefix cache makes what was cached clean at once."""

    def evict_all(self) -> list[int]:
        blocks = super().evict_all()
        for block in blocks:
            self.dirty.remove(block)
            self._state[block] = CLEAN
            self._clean.append(block)
        return blocks


class ShrinksWhatIsInUse(Ledger):
    """A lowered limit takes blocks from under running requests."""

    def apply(self, quotas: Mapping[str, Quota], draining: Mapping[str, Quota] = MappingProxyType({})) -> list[int]:
        evicted = super().apply(quotas, draining)
        for block, domain in enumerate(self.domains):
            if domain is not None and domain.tenant.owned > domain.tenant.limit and self._state[block] == IN_USE:
                self._soil(domain, block)
        return evicted


class EndlessGrace(Departures):
    """Requests of a tenant that left run on for ever."""

    def plan(self, quotas: Mapping[str, Quota], *, pool: int, grace: float, now: float) -> dict[str, Quota]:
        kept = super().plan(quotas, pool=pool, grace=math.inf, now=now)
        self.due = min((left.left_at + grace for left in self._left.values()), default=math.inf)
        return kept


class LeavesWithItsGuarantee(Departures):
    """A tenant that left keeps its guarantee, though the pool is promised to others."""

    def plan(self, quotas: Mapping[str, Quota], *, pool: int, grace: float, now: float) -> dict[str, Quota]:
        kept = super().plan(quotas, pool=pool, grace=grace, now=now)
        return {name: replace(quota, guaranteed=self._left[name].quota.guaranteed) for name, quota in kept.items()}


class NoSequenceCap(Fairness):
    """A tenant may run as many sequences as there are slots."""

    def may_start(self, flow: Flow, free_slots: int) -> bool:
        cap, flow.max_sequences = flow.max_sequences, UNLIMITED
        answer = super().may_start(flow, free_slots)
        flow.max_sequences = cap
        return answer


class NoSlotKept(Fairness):
    """The last slot goes to whoever asks first, though another tenant has none."""

    def may_start(self, flow: Flow, free_slots: int) -> bool:
        return super().may_start(flow, self._slots)


LEDGERS: tuple[type[Ledger], ...] = (
    NoScrub, EarlyClean, BelievesAnyAck, CrossScopeTouch, CrossScopeRecycle, CrossTenantEviction, BorrowsWhatIsGuaranteed,
    NegativeCount, KeepsRetiredCache, ForgetsStaleEarly, KeepsTheQuotaOfWhoLeft, CachesForWhoLeft, ResetWithoutScrub,
    ShrinksWhatIsInUse,
)  # fmt: skip
TWINS: dict[str, Parts] = (
    {bug.__name__: Parts(ledger=bug) for bug in LEDGERS}
    | {bug.__name__: Parts(departures=bug) for bug in (EndlessGrace, LeavesWithItsGuarantee)}
    | {bug.__name__: Parts(fairness=bug) for bug in (NoSequenceCap, NoSlotKept)}
)
"""Every planted bug by name."""
