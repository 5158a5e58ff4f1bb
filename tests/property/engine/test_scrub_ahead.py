"""The low-water mark: with it no allocation of its size waits for a scrub, and only a tenant's own oldest cache pays for it."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from blockwarden_engine.domains import Tenant
from blockwarden_engine.ledger import CACHED, LOW_WATER, Ledger
from blockwarden_engine.quotas import Quota

LIMIT = 18
MARK = -(-LIMIT // LOW_WATER)
EVENTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.integers(1, MARK), st.booleans()), min_size=25, max_size=35
)
"""(tenant, user, blocks, whether they stay cached) of each request."""


class NoMark(Ledger):
    """Waits until somebody needs a block before it scrubs one."""

    def scrub_ahead(self) -> list[int]:
        return []


class AnybodysCache(Ledger):
    """Fills one tenant's mark with another's cache."""

    def scrub_ahead(self) -> list[int]:
        donors = [tenant for tenant in self.tenants.values() if tenant.lru]
        return [block for tenant in donors for block in self._evict(list(islice(tenant.lru, 1)))]


class NewestFirst(Ledger):
    """Gives up what was used last."""

    def scrub_ahead(self) -> list[int]:
        short = [tenant for tenant in self.tenants.values() if missing(self, tenant) and tenant.lru]
        return self._evict([next(reversed(tenant.lru)) for tenant in short])


class NeverEnough(Ledger):
    """Scrubs a tenant's whole cache ahead."""

    def scrub_ahead(self) -> list[int]:
        return self._evict([block for tenant in self.tenants.values() if missing(self, tenant) for block in tenant.lru])


def missing(ledger: Ledger, tenant: Tenant) -> int:
    """How many blocks a tenant lacks to its mark, counted over the pool; every tenant here has its whole limit guaranteed."""
    owned = sum(domain is not None and domain.tenant is tenant for domain in ledger.domains)
    return max(0, MARK - (LIMIT - owned)) if len(tenant.domains) > 1 else 0


def scrub(ledger: Ledger) -> None:
    epoch, blocks = ledger.order_scrub()
    if epoch:
        ledger.acknowledge(epoch, len(blocks))


def drive(cls: type[Ledger], events: list[tuple[str, int, int, bool]]) -> None:
    """Requests of several users of two tenants, one after the other; raises AssertionError for one that has to wait."""
    ledger = cls(2 * LIMIT + 1)
    ledger.apply({name: Quota(LIMIT, LIMIT, LIMIT, 1, 1) for name in "ab"})
    for name, user, count, keep in events:
        promised = len(ledger.tenants[name].domains) > 1  # a tenant's second user may still find the first's cache everywhere
        domain = ledger.enter(name, 1, str(user))
        fits = count <= ledger.allocatable(domain)
        assert fits or not promised, "an allocation waits for a scrub"
        if not fits:
            ledger.make_room(domain, count)
            scrub(ledger)
        taken = ledger.take(domain, count)
        look_ahead(ledger)
        for block in (*taken.fresh, *taken.recycled):
            ledger.release(block, keep=keep)
        ledger.leave(domain)
        look_ahead(ledger)
        scrub(ledger)


def look_ahead(ledger: Ledger) -> None:
    """Scrubs ahead, and holds what went against what may go."""
    tenants = dict(ledger.tenants)
    may = {name: missing(ledger, tenant) for name, tenant in tenants.items()}
    lru = {name: list(tenant.lru) for name, tenant in tenants.items()}
    ledger.scrub_ahead()
    for name, blocks in lru.items():
        gone = [block for block in blocks if ledger.state(block) != CACHED]
        assert len(gone) <= may[name], "more was scrubbed ahead than a tenant's own mark needs"
        assert gone == blocks[: len(gone)], "not the oldest was scrubbed ahead"


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(EVENTS)
def test_allocation_does_not_wait_and_only_the_own_oldest_cache_pays(events: list[tuple[str, int, int, bool]]) -> None:
    drive(Ledger, events)


@pytest.mark.parametrize("broken", [NoMark, AnybodysCache, NewestFirst, NeverEnough])
def test_a_mark_that_is_kept_wrongly_is_caught(broken: type[Ledger]) -> None:
    @settings(
        max_examples=100, deadline=None, derandomize=True, phases=(Phase.generate,), suppress_health_check=list(HealthCheck)
    )
    @given(EVENTS)
    def property_of_the_twin(events: list[tuple[str, int, int, bool]]) -> None:
        drive(broken, events)

    with pytest.raises(AssertionError):
        property_of_the_twin()
