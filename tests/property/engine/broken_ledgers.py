"""Ledgers that are wrong on purpose, each in one way that would break isolation. The state machine must catch every one."""

from __future__ import annotations

from itertools import islice

from blockwarden_engine.domains import Domain, Tenant
from blockwarden_engine.errors import MismatchedAck
from blockwarden_engine.ledger import CACHED, CLEAN, IN_USE, Ledger, Taken


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


TWINS: tuple[type[Ledger], ...] = (
    NoScrub, EarlyClean, BelievesAnyAck, CrossScopeTouch, CrossScopeRecycle, CrossTenantEviction, BorrowsWhatIsGuaranteed,
    NegativeCount, KeepsRetiredCache, ForgetsStaleEarly,
)  # fmt: skip
