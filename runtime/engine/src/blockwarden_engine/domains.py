"""Tenants, salt generations and trust domains as the ledger counts them: records, no rules."""

from __future__ import annotations

from collections import Counter, OrderedDict

from .quotas import Quota


class Generation:
    """One tenant's salt generation: how many trust domains it has, and how many blocks hold, or held, content of it and are not
    confirmed zero."""

    __slots__ = ("domains", "number", "tenant", "unzeroed")

    def __init__(self, tenant: Tenant, number: int) -> None:
        self.tenant, self.number = tenant, number
        self.domains = self.unzeroed = 0


class Tenant:
    """One tenant's account.

    Attributes:
        registered: whether the policy in force has it.
        draining: it is not, and its requests may run on until their grace period is over.
        guaranteed, limit, capacity, generation, floor: as in `Quota`; zero blocks for a tenant that is neither.
        owned: blocks in use or cached.
        unmet: what is missing to the guarantee; kept by the ledger together with the sum over all tenants.
        lru: ids of cached blocks of all its domains, oldest first.
        counters: what happened to it since the ledger knows it, for the report.
        generations: generations with trust domains or with blocks that are not zero, by number.
        domains: by owner.
    """

    __slots__ = (
        "capacity", "counters", "domains", "draining", "floor", "generation", "generations", "guaranteed",
        "limit", "lru", "name", "owned", "registered", "unmet",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name, self.registered, self.draining = name, False, False
        self.guaranteed = self.limit = self.capacity = self.owned = self.unmet = 0
        self.generation = self.floor = 1
        self.lru: OrderedDict[int, None] = OrderedDict()
        self.counters: Counter[str] = Counter()
        self.generations: dict[int, Generation] = {}
        self.domains: dict[int, Domain] = {}

    @property
    def surplus(self) -> int:
        """Blocks held beyond the guarantee; negative while it is unmet."""
        return self.owned - self.guaranteed

    @property
    def stale_blocks(self) -> int:
        """Blocks of generations that must go and are not confirmed zero."""
        return sum(generation.unzeroed for generation in self.generations.values() if self.is_stale(generation.number))

    @property
    def requests(self) -> int:
        """Unfinished requests."""
        return sum(domain.requests for domain in self.domains.values())

    def is_stale(self, generation: int) -> bool:
        """Whether requests and blocks of this generation must go, sooner or later."""
        return not self.registered or generation < self.floor

    def must_end(self, generation: int) -> bool:
        """Whether requests of this generation must go now."""
        return not (self.registered or self.draining) or generation < self.floor

    def apply(self, quota: Quota | None, draining: Quota | None = None) -> None:
        """Takes a quota into force. None de-registers; requests that are there run on under `draining`, if that is given."""
        self.registered = quota is not None
        self.draining = quota is None and draining is not None and self.requests > 0
        quota = draining if self.draining else quota
        self.guaranteed, self.limit, self.capacity = (quota.guaranteed, quota.limit, quota.capacity) if quota else (0, 0, 0)
        if quota is not None:
            self.generation, self.floor = quota.generation, quota.floor
        self.unmet = max(0, self.guaranteed - self.owned)

    def generation_of(self, number: int) -> Generation:
        return self.generations.setdefault(number, Generation(self, number))


class Domain:
    """One trust domain: the requests of one tenant, generation and salt share blocks with one another and with nobody else.

    Attributes:
        owner: the number under which workers know it; never given twice.
        owned: blocks in use or cached.
        requests: unfinished requests.
        lru: ids of its cached blocks, oldest first.
    """

    __slots__ = ("generation", "lru", "owned", "owner", "requests", "salt", "tenant")

    def __init__(self, owner: int, tenant: Tenant, generation: Generation, salt: str) -> None:
        self.owner, self.tenant, self.generation, self.salt = owner, tenant, generation, salt
        self.owned = self.requests = 0
        self.lru: OrderedDict[int, None] = OrderedDict()

    @property
    def keeps_cache(self) -> bool:
        """Whether its released blocks may stay cached."""
        return self.tenant.registered and self.generation.number >= self.tenant.generation
