"""Who owns which KV block: the accounting behind the pool, free of vLLM and torch.

    clean -> in use -> cached -> in use ...           owned by one trust domain (tenant, generation, salt) of one tenant
      ^         |         |
      |         v         v
    scrubbing <- - dirty                              owned by nobody, content not yet zero

A block changes trust domain only through clean, and is clean only after its scrub epoch was acknowledged. Within a domain the
oldest cached block may be used again at once; whoever does so zeroes it before the next forward pass (`Taken.recycled`).
Quotas count by tenant, ownership is by domain. Every operation is O(1) per block it moves; what a tenant may take is kept
incrementally, so no step ever walks over tenants or blocks.

How many blocks a tenant may take now:

    min(clean, own unmet guarantee + clean blocks beyond all unmet guarantees, limit - owned)

so nobody borrows what another tenant is guaranteed, not even for the length of a scrub.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from .domains import Domain, Generation, Tenant
from .errors import MismatchedAck, NotOwned, QuotaExceeded, WrongState
from .protocol import NOBODY
from .quotas import Quota

NULL, CLEAN, IN_USE, CACHED, DIRTY, SCRUBBING = range(6)
NULL_BLOCK: Final = 0
LOW_WATER: Final = 16
"""One block in so many of a tenant's limit is kept clean for it, where its trust domains would wait for each other's blocks."""


class Taken:
    """Blocks given to a domain: `fresh` were clean, `recycled` hold the domain's own old content and must be zeroed first."""

    __slots__ = ("fresh", "recycled")

    def __init__(self, fresh: list[int], recycled: list[int]) -> None:
        self.fresh, self.recycled = fresh, recycled


class Ledger:
    """The state of every block of one pool.

    Attributes:
        domains: per block, the domain that owns it; None while nobody does. Read it, never write it.
        dirty: ids waiting for a scrub order.
        epoch: the last scrub epoch that was ordered.
        clean, scrubbing, cached: how many blocks are in these states.
    """

    def __init__(self, blocks: int) -> None:
        """Args:
        blocks: block ids run from 0 to `blocks` - 1; block 0 is the null block. All others start clean: whoever hands over
            the memory has zeroed it.
        """
        self.size = blocks - 1
        self.domains: list[Domain | None] = [None] * blocks
        self.dirty: list[int] = []
        self.epoch = 0
        self.scrubbing = 0
        self.cached = 0
        self._state = bytearray([NULL] + [CLEAN] * self.size)
        self._clean = list(range(self.size, NULL_BLOCK, -1))
        self._unzeroed: list[Generation | None] = [None] * blocks
        self._ordered: OrderedDict[int, list[int]] = OrderedDict()
        self._tenants: dict[str, Tenant] = {}
        self._domains: dict[tuple[str, int, str], Domain] = {}
        self._next_owner = NOBODY + 1
        self._unmet = 0
        self._borrowers: set[Tenant] = set()
        self._changed: dict[Tenant, None] = {}

    # ---- who is who ------------------------------------------------------------------------------------------------------

    @property
    def clean(self) -> int:
        return len(self._clean)

    @property
    def tenants(self) -> Mapping[str, Tenant]:
        """Tenants of the policy in force, and those no longer in it that still have requests or blocks that are not zero."""
        return self._tenants

    def state(self, block: int) -> int:
        return self._state[block]

    def owner(self, block: int) -> int:
        domain = self.domains[block]
        return NOBODY if domain is None else domain.owner

    def enter(self, tenant: str, generation: int, salt: str) -> Domain:
        """The domain of one more request; give it back with `leave`.

        Raises:
            KeyError: the policy in force has no such tenant.
        """
        key = (tenant, generation, salt)
        domain = self._domains.get(key)
        if domain is None:
            account = self._tenants[tenant]
            domain = Domain(self._next_owner, account, account.generation_of(generation), salt)
            domain.generation.domains += 1
            self._next_owner += 1
            self._domains[key] = account.domains[domain.owner] = domain
        domain.requests += 1
        return domain

    def leave(self, domain: Domain) -> None:
        """One request of the domain is gone; its blocks were released before, or will be when their steps are done."""
        if domain.requests < 1:
            raise WrongState("a trust domain was left more often than entered")
        domain.requests -= 1
        self._forget(domain)

    # ---- what may be taken -----------------------------------------------------------------------------------------------

    def allocatable(self, domain: Domain) -> int:
        """Blocks that `take` would give now."""
        return self._allowance(domain.tenant, len(self._clean)) + len(domain.lru)

    def prospect(self, domain: Domain) -> int:
        """Blocks that `take` would give if everything dirty and scrubbing were clean."""
        return self._outlook(domain.tenant) + len(domain.lru)

    def _outlook(self, tenant: Tenant) -> int:
        return self._allowance(tenant, len(self._clean) + len(self.dirty) + self.scrubbing)

    def _allowance(self, tenant: Tenant, clean: int) -> int:
        spare = clean - self._unmet
        allowed = tenant.unmet + spare if spare > 0 else tenant.unmet
        return max(0, min(clean, allowed, tenant.limit - tenant.owned))

    # ---- blocks in and out of use ----------------------------------------------------------------------------------------

    def take(self, domain: Domain, count: int) -> Taken:
        """`count` blocks for the domain, now in use: clean ones first, then its own oldest cached ones.

        Raises:
            QuotaExceeded: more than `allocatable`, or a negative count.
        """
        allowed = self._allowance(domain.tenant, len(self._clean))
        if not 0 <= count <= allowed + len(domain.lru):
            raise QuotaExceeded(f"{count} blocks were asked for and {allowed + len(domain.lru)} may be taken")
        wanted = min(count, allowed)
        fresh = self._clean[len(self._clean) - wanted :]
        del self._clean[len(self._clean) - wanted :]
        generation = domain.generation
        for block in fresh:
            self._state[block] = IN_USE
            self.domains[block] = domain
            self._unzeroed[block] = generation
        generation.unzeroed += wanted
        self._changed[domain.tenant] = None
        domain.owned += wanted
        self._count(domain.tenant, wanted)
        recycled = list(islice(domain.lru, count - wanted))
        for block in recycled:
            self._uncache(domain, block)
        return Taken(fresh, recycled)

    def hit(self, domain: Domain, block: int) -> None:
        """A cached block is used again by a request of its own domain.

        Raises:
            NotOwned: the block is another domain's, or nobody's.
            WrongState: it is not cached.
        """
        if self.domains[block] is not domain:
            raise NotOwned(f"block {block} was hit by a trust domain that does not own it")
        if self._state[block] != CACHED:
            raise WrongState(f"block {block} was taken out of the cache and is not in it")
        self._uncache(domain, block)

    def release(self, block: int, *, keep: bool) -> bool:
        """The last request that used `block` let go of it. Whether it stays cached: only if `keep`, its domain's generation is
        in use, and its tenant is registered and within its limit. Otherwise it is dirty.

        Raises:
            WrongState: the block is not in use.
        """
        domain = self.domains[block]
        if domain is None or self._state[block] != IN_USE:
            raise WrongState(f"block {block} was released and is not in use")
        if keep and domain.keeps_cache and domain.tenant.owned <= domain.tenant.limit:
            self._state[block] = CACHED
            domain.lru[block] = None
            domain.tenant.lru[block] = None
            self._changed[domain.tenant] = None
            self.cached += 1
            return True
        self._soil(domain, block)
        return False

    def evict(self, block: int) -> None:
        """A cached block loses its content.

        Raises:
            WrongState: it is not cached.
        """
        domain = self.domains[block]
        if domain is None or self._state[block] != CACHED:
            raise WrongState(f"block {block} was evicted and is not cached")
        self._uncache(domain, block)
        self._soil(domain, block)

    def evict_all(self) -> list[int]:
        """Every cached block loses its content; their ids."""
        blocks = [block for tenant in self._tenants.values() for block in tenant.lru]
        return self._evict(blocks)

    def make_room(self, domain: Domain, count: int) -> list[int]:
        """Evicts what must be evicted so that `count` blocks can be taken once the scrubs are acknowledged; the evicted ids.

        First the tenant's own blocks of other domains, oldest first; then what other tenants borrowed and hold only as cache, of
        whoever borrowed most. Nothing that a tenant is guaranteed, and nothing in use.
        """
        evicted: list[int] = []
        if (short := count - self.prospect(domain)) > 0:
            tenant = domain.tenant
            others = (block for block in tenant.lru if self.domains[block] is not domain)
            evicted += self._evict(list(islice(others, short)) if len(tenant.lru) > len(domain.lru) else [])
            evicted += self._reclaim(domain, count)
        return evicted

    def scrub_ahead(self) -> list[int]:
        """Keeps a low-water mark of blocks on hand, so that allocation need not wait for a scrub: evicts the oldest cached blocks
        of each tenant that has less and has changed since the last call; the evicted ids.

        Only a tenant's own blocks go, and only where it has several trust domains: within one, the oldest cached block is used
        again at once, so evicting it early would cost hits and win nothing. Looks at the tenants that changed, not at all.
        """
        changed, self._changed, evicted = self._changed, {}, list[int]()
        for tenant in changed:
            if len(tenant.domains) > 1 and (short := -(-tenant.limit // LOW_WATER) - self._outlook(tenant)) > 0:
                evicted += self._evict(list(islice(tenant.lru, short)))
        return evicted

    def _reclaim(self, domain: Domain, count: int) -> list[int]:
        tenant, evicted = domain.tenant, list[int]()
        if tenant.limit - tenant.owned + len(domain.lru) < count:
            return evicted
        for donor in sorted(self._borrowers - {tenant}, key=lambda other: -other.surplus):
            short = count - self.prospect(domain)
            spare = min(short, donor.surplus, len(donor.lru))
            if spare > 0:
                evicted += self._evict(list(islice(donor.lru, spare)))
        return evicted

    # ---- scrubbing -------------------------------------------------------------------------------------------------------

    def order_scrub(self) -> tuple[int, list[int]]:
        """The next epoch and the ids to zero under it; (0, []) when nothing is dirty."""
        if not self.dirty:
            return 0, []
        self.epoch += 1
        blocks, self.dirty = self.dirty, []
        for block in blocks:
            self._state[block] = SCRUBBING
        self._ordered[self.epoch] = blocks
        self.scrubbing += len(blocks)
        return self.epoch, blocks

    def acknowledge(self, epoch: int, count: int) -> None:
        """All ranks have zeroed the blocks of an epoch: they are clean.

        Raises:
            MismatchedAck: not the oldest epoch without an acknowledgement, or another number of blocks than was ordered.
        """
        expected = next(iter(self._ordered), None)
        if epoch != expected:
            raise MismatchedAck(f"scrub epoch {epoch} was acknowledged, and {expected} is the next that was ordered")
        if count != len(self._ordered[epoch]):
            raise MismatchedAck(
                f"{count} blocks were zeroed in scrub epoch {epoch}, and {len(self._ordered[epoch])} were ordered"
            )
        blocks = self._ordered.pop(epoch)
        self.scrubbing -= count
        for block in blocks:
            self._state[block] = CLEAN
            generation = self._unzeroed[block]
            self._unzeroed[block] = None
            if generation is not None:
                generation.unzeroed -= 1
                self._forget_generation(generation)
        self._clean += blocks

    # ---- the policy ------------------------------------------------------------------------------------------------------

    def apply(self, quotas: Mapping[str, Quota]) -> list[int]:
        """Takes quotas into force; the ids of cached blocks that had to go.

        Tenants that are absent are de-registered: their blocks go as they are released. What exceeds a lowered limit goes as
        far as it is cached; what is in use stays until its requests let go of it.
        """
        for name in quotas:
            self._tenants.setdefault(name, Tenant(name))
        for name, tenant in self._tenants.items():
            tenant.apply(quotas.get(name))
        self._unmet = sum(tenant.unmet for tenant in self._tenants.values())
        self._borrowers = {tenant for tenant in self._tenants.values() if tenant.surplus > 0}
        evicted = self._evict([block for tenant in self._tenants.values() for block in _unwanted(tenant)])
        for tenant in list(self._tenants.values()):
            evicted += self._evict(list(islice(tenant.lru, max(0, tenant.owned - tenant.limit))))
            self._forget_tenant(tenant)
        return evicted

    # ---- bookkeeping -----------------------------------------------------------------------------------------------------

    def held_by(self, domain: Domain) -> Iterator[int]:
        """Ids in use by the domain. Walks over the pool: for repairs and tests."""
        return (block for block, owner in enumerate(self.domains) if owner is domain and self._state[block] == IN_USE)

    def _evict(self, blocks: list[int]) -> list[int]:
        for block in blocks:
            self.evict(block)
        return blocks

    def _uncache(self, domain: Domain, block: int) -> None:
        del domain.lru[block]
        del domain.tenant.lru[block]
        self.cached -= 1
        self._state[block] = IN_USE

    def _soil(self, domain: Domain, block: int) -> None:
        self._state[block] = DIRTY
        self.domains[block] = None
        self.dirty.append(block)
        domain.owned -= 1
        self._count(domain.tenant, -1)
        if not domain.owned:
            self._forget(domain)

    def _count(self, tenant: Tenant, change: int) -> None:
        before = tenant.unmet
        tenant.owned += change
        tenant.unmet = max(0, tenant.guaranteed - tenant.owned)
        self._unmet += tenant.unmet - before
        if tenant.owned > tenant.guaranteed:
            self._borrowers.add(tenant)
        else:
            self._borrowers.discard(tenant)

    def _forget(self, domain: Domain) -> None:
        if domain.requests or domain.owned:
            return
        tenant, generation = domain.tenant, domain.generation
        if self._domains.pop((tenant.name, generation.number, domain.salt), None) is not None:
            del tenant.domains[domain.owner]
            generation.domains -= 1
            self._forget_generation(generation)

    def _forget_generation(self, generation: Generation) -> None:
        if not (generation.unzeroed or generation.domains):
            generation.tenant.generations.pop(generation.number, None)
            self._forget_tenant(generation.tenant)

    def _forget_tenant(self, tenant: Tenant) -> None:
        if not (tenant.registered or tenant.generations):
            self._tenants.pop(tenant.name, None)


def _unwanted(tenant: Tenant) -> Iterable[int]:
    """Cached blocks of generations that are no longer in use, and all of a tenant that is not registered."""
    return [block for domain in tenant.domains.values() if not domain.keeps_cache for block in domain.lru]
