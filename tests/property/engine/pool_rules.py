"""What happens to KV blocks, in any order, and what must never come of it: rules for a hypothesis state machine.

One set of rules, two subjects: the pure ledger (tests/property/engine) and the subclass of vLLM's pool that it drives
(tests/integration/engine/scheduler). Both load this file by path. The machine is its own worker: it keeps what every block
holds, zeroes only what it is told to, and in its own time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from blockwarden_engine.domains import Domain, Tenant
from blockwarden_engine.errors import MismatchedAck, NotOwned, QuotaExceeded
from blockwarden_engine.ledger import CACHED, CLEAN, IN_USE, Ledger
from blockwarden_engine.quotas import Quota

BLOCKS = 13
TENANTS = ("a", "b", "c")
SALTS = ("s", "t")
SELDOM = st.integers(0, 7).map(lambda drawn: drawn == 7)
"""For events that undo much: without rest between them a cache never fills."""

THOROUGH = settings(
    max_examples=150, stateful_step_count=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
TWIN = settings(THOROUGH, max_examples=1000, phases=(Phase.generate,))
"""For twins, which must fail: found is enough, the smallest example is not needed."""


class Subject(Protocol):
    """A pool under test. Blocks are named by id; a published block is one whose content can be hit under `key`."""

    ledger: Ledger

    def allocate(self, domain: Domain, count: int) -> tuple[list[int], list[int]]:
        """(all ids, those of them that were recycled)."""

    def publish(self, block: int, key: int) -> None: ...

    def lookup(self, domain: Domain, key: int) -> int | None: ...

    def use(self, domain: Domain, block: int) -> None:
        """One more request of the domain uses the block."""

    def free(self, domain: Domain, blocks: list[int]) -> None: ...

    def evict(self, block: int) -> None: ...

    def make_room(self, domain: Domain, count: int) -> None: ...

    def apply(self, quotas: dict[str, Quota]) -> None: ...

    def references(self, block: int) -> int: ...


@dataclass
class Request:
    """What one request uses."""

    domain: Domain
    blocks: list[int] = field(default_factory=list)


class PoolMachine(RuleBasedStateMachine):
    """Allocate, hit, free, evict, preempt, scrub, acknowledge, quota change, generation rise, de-registration."""

    def __init__(self, make: Callable[[int], Subject]) -> None:
        super().__init__()
        self.subject = make(BLOCKS)
        self.ledger = self.subject.ledger
        self.content: list[tuple[str, int, str] | None] = [None] * BLOCKS
        self.requests: list[Request] = []
        self.quotas: dict[str, Quota] = {}
        self.ordered: deque[tuple[int, list[int]]] = deque()
        self.zeroed: deque[tuple[int, int]] = deque()
        self.residue: dict[int, tuple[str, int]] = {}
        self.published: dict[int, Domain] = {}
        self.owners: dict[int, tuple[str, int, str]] = {}
        self.deficit = 0
        self.key = 0
        self.keys: dict[int, int] = {}

    # ---- rules -----------------------------------------------------------------------------------------------------------

    @initialize(parts=st.lists(st.integers(0, 6), min_size=3, max_size=3))
    def start(self, parts: list[int]) -> None:
        self._change({name: (part, part) for name, part in zip(TENANTS, parts, strict=True)})

    @rule(
        tenants=st.sets(st.sampled_from(TENANTS)), parts=st.lists(st.integers(0, 6), min_size=3, max_size=3),
        extra=st.lists(st.integers(0, 8), min_size=3, max_size=3), now=SELDOM,
    )  # fmt: skip
    def change_quotas(self, tenants: set[str], parts: list[int], extra: list[int], now: bool) -> None:
        """Also registers and de-registers."""
        if now:
            self._change({TENANTS[at]: (parts[at], parts[at] + extra[at]) for at in range(3) if TENANTS[at] in tenants})

    @rule(name=st.sampled_from(TENANTS), retire=st.booleans(), now=SELDOM)
    def raise_generation(self, name: str, retire: bool, now: bool) -> None:
        """Draining (the generation rises) and retiring (the floor follows)."""
        if now and (quota := self.quotas.get(name)) is not None:
            generation = quota.generation + (not retire)
            floor = generation if retire else quota.floor
            self._put(self.quotas | {name: Quota(quota.guaranteed, quota.limit, quota.capacity, generation, floor)})

    @rule(
        name=st.sampled_from(TENANTS), salt=st.sampled_from(SALTS), old=st.booleans(), count=st.integers(-2, 7),
        publish=st.booleans(),
    )  # fmt: skip
    def allocate(self, name: str, salt: str, old: bool, count: int, publish: bool) -> None:
        quota = self.quotas.get(name)
        if quota is None:
            return
        generation = quota.floor if old else quota.generation
        request = Request(self._enter(name, generation, salt))
        self._allocate(request, count)
        self.requests.append(request)
        if publish:
            self._publish(request)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), count=st.integers(1, 3))
    def grow(self, data: st.DataObject, count: int) -> None:
        self._allocate(data.draw(st.sampled_from(self.requests)), count)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        self._publish(data.draw(st.sampled_from(self.requests)))

    def _publish(self, request: Request) -> None:
        for block in request.blocks:
            if block not in self.published and self.subject.references(block) == 1:
                self.key += 1
                self.subject.publish(block, self.key)
                self.published[block] = request.domain
                self.keys[self.key] = block

    @precondition(lambda self: bool(self.requests and self.keys))
    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        """A request of any domain meets a published block: its own it may use, another's never."""
        request = data.draw(st.sampled_from(self.requests))
        key = data.draw(st.sampled_from(sorted(self.keys)))
        block = self.subject.lookup(request.domain, key)
        if block is None:
            return
        before = self._others(request.domain.tenant)
        try:
            self.subject.use(request.domain, block)
        except NotOwned:
            assert self.published.get(block) is not request.domain, "a domain was refused its own block"
            return
        request.blocks.append(block)
        assert self.content[block] == self._name(request.domain), "a request hit what another trust domain wrote"
        self._unharmed(before)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        """A request ends, is aborted or is preempted: to the pool it is all one."""
        request = data.draw(st.sampled_from(self.requests))
        before = self._others(request.domain.tenant)
        self.requests.remove(request)
        self.subject.free(request.domain, request.blocks[::-1])
        self.ledger.leave(request.domain)
        self._unharmed(before)

    @rule(block=st.integers(1, BLOCKS - 1))
    def evict(self, block: int) -> None:
        if self.ledger.state(block) == CACHED:
            self.subject.evict(block)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), count=st.integers(1, 8))
    def make_room(self, data: st.DataObject, count: int) -> None:
        domain = data.draw(st.sampled_from(self.requests)).domain
        before = self._others(domain.tenant)
        self.subject.make_room(domain, count)
        self._unharmed(before)

    @rule()
    def work(self) -> None:
        """A whole round of the worker."""
        self.scrub()
        while self.ordered:
            self.zero()
        while self.zeroed:
            self.acknowledge()

    @rule()
    def scrub(self) -> None:
        epoch, blocks = self.ledger.order_scrub()
        if epoch:
            self.ordered.append((epoch, list(blocks)))

    @precondition(lambda self: self.ordered)
    @rule()
    def zero(self) -> None:
        """The worker does what it was told, some time later."""
        epoch, blocks = self.ordered.popleft()
        for block in blocks:
            self.content[block] = None
        self.zeroed.append((epoch, len(blocks)))

    @precondition(lambda self: self.zeroed)
    @rule()
    def acknowledge(self) -> None:
        epoch, count = self.zeroed.popleft()
        before = [block for block in range(1, BLOCKS) if self.ledger.state(block) != CLEAN]
        self.ledger.acknowledge(epoch, count)
        for block in before:
            if self.ledger.state(block) == CLEAN:
                self.residue.pop(block, None)

    @rule(epoch=st.integers(0, 9), count=st.integers(0, BLOCKS))
    def acknowledge_falsely(self, epoch: int, count: int) -> None:
        """An acknowledgement that nobody can have sent changes nothing."""
        pending = [*self.zeroed, *((epoch, len(blocks)) for epoch, blocks in self.ordered)]
        if pending and pending[0] == (epoch, count):
            return
        try:
            self.ledger.acknowledge(epoch, count)
        except MismatchedAck:
            return
        raise AssertionError("a false acknowledgement was believed")

    # ---- invariants ------------------------------------------------------------------------------------------------------

    @invariant()
    def nobody_reads_what_another_wrote(self) -> None:
        """DESIGN §8, 3."""
        for block in range(1, BLOCKS):
            if self.ledger.state(block) == CLEAN:
                assert self.content[block] is None, f"block {block} is clean and holds content"
        for request in self.requests:
            for block in request.blocks:
                assert self.ledger.domains[block] is request.domain, "a request uses a block of another trust domain"
                assert self.ledger.state(block) == IN_USE
                assert self.content[block] in (None, self._name(request.domain)), "a request can read another's content"

    @invariant()
    def nobody_borrows_what_another_is_guaranteed(self) -> None:
        """DESIGN §8, 4: what is missing to all guarantees together is there, in no tenant's hands."""
        deficit = self._deficit()
        assert deficit <= self.deficit, "a tenant took what another is guaranteed"
        self.deficit = deficit

    @invariant()
    def only_generations_in_use_stay_cached(self) -> None:
        for block in range(1, BLOCKS):
            if self.ledger.state(block) == CACHED and (domain := self.ledger.domains[block]) is not None:
                quota = self.quotas.get(domain.tenant.name)
                assert quota is not None, "a tenant that left has cached blocks"
                assert domain.generation.number >= quota.generation, "a block of an older generation stays cached"

    @invariant()
    def the_books_are_right(self) -> None:
        ledger, held = self.ledger, dict.fromkeys(TENANTS, 0)
        for block in range(1, BLOCKS):
            if (domain := ledger.domains[block]) is not None:
                held[domain.tenant.name] += 1
            assert (self.subject.references(block) > 0) == (ledger.state(block) == IN_USE)
            assert self.subject.references(block) == sum(request.blocks.count(block) for request in self.requests)
        for tenant in ledger.tenants.values():
            assert tenant.owned == held[tenant.name] == sum(domain.owned for domain in tenant.domains.values())
            assert tenant.owned >= 0
            assert tenant.unmet == max(0, tenant.guaranteed - tenant.owned)
        owned = sum(held.values())
        assert ledger.clean + owned + len(ledger.dirty) + ledger.scrubbing == ledger.size
        assert ledger.clean == sum(ledger.state(block) == CLEAN for block in range(1, BLOCKS))
        assert ledger.cached == sum(ledger.state(block) == CACHED for block in range(1, BLOCKS))

    @invariant()
    def stale_blocks_count_until_they_are_zero(self) -> None:
        for tenant in self.ledger.tenants.values():
            stale = [block for block, (name, number) in self.residue.items() if name == tenant.name and tenant.is_stale(number)]
            assert tenant.stale_blocks == len(stale), "the report of stale blocks is wrong"
        for name, _ in self.residue.values():
            assert name in self.ledger.tenants, "a tenant was forgotten before its blocks were zero"

    # ---- the oracle ------------------------------------------------------------------------------------------------------

    def _allocate(self, request: Request, count: int) -> None:
        domain = request.domain
        allowed, before = self._allowed(domain), self._others(domain.tenant)
        assert self.ledger.allocatable(domain) == allowed, "a tenant may take more or less than its quota says"
        try:
            blocks, recycled = self.subject.allocate(domain, count)
        except QuotaExceeded:
            assert count < 0 or count > allowed, "a tenant was refused what it is allowed"
            return
        assert 0 <= count <= allowed, "a quota was exceeded"
        assert len(blocks) == len(set(blocks)) == count
        for block in blocks:
            expected = self._name(domain) if block in recycled else None
            assert self.content[block] in (None, expected), "a block changed its trust domain without being zeroed"
            self.content[block] = self._name(domain)  # a recycled one is zeroed first, by the worker, in the same step
            self.residue[block] = (domain.tenant.name, domain.generation.number)
            if self.published.pop(block, None) is not None:
                self.keys = {key: published for key, published in self.keys.items() if published != block}
            request.blocks.append(block)
        self._unharmed(before)

    def _allowed(self, domain: Domain) -> int:
        """The quota rule, from the enumerated state alone."""
        ledger, tenant = self.ledger, domain.tenant
        clean = sum(ledger.state(block) == CLEAN for block in range(1, BLOCKS))
        cached = sum(ledger.state(block) == CACHED and ledger.domains[block] is domain for block in range(1, BLOCKS))
        unmet = {name: max(0, quota.guaranteed - self._owned(name)) for name, quota in self.quotas.items()}
        quota = self.quotas.get(tenant.name)
        if quota is None:
            return cached
        spare = max(0, clean - sum(unmet.values()))
        return max(0, min(clean, unmet[tenant.name] + spare, quota.limit - self._owned(tenant.name))) + cached

    def _owned(self, name: str) -> int:
        return sum(domain is not None and domain.tenant.name == name for domain in self.ledger.domains)

    def _deficit(self) -> int:
        unmet = sum(max(0, quota.guaranteed - self._owned(name)) for name, quota in self.quotas.items())
        unowned = self.ledger.size - sum(domain is not None for domain in self.ledger.domains)
        return max(0, unmet - unowned)

    def _others(self, acting: Tenant) -> dict[str, set[int]]:
        """What each other tenant holds."""
        held: dict[str, set[int]] = {name: set() for name in TENANTS if name != acting.name}
        for block, domain in enumerate(self.ledger.domains):
            if domain is not None and domain.tenant is not acting:
                held[domain.tenant.name].add(block)
        return held

    def _unharmed(self, before: dict[str, set[int]]) -> None:
        """DESIGN §8, 4: an act of one tenant takes from others at most what they hold, as cache, beyond their guarantee."""
        for name, blocks in before.items():
            now = {block for block, domain in enumerate(self.ledger.domains) if domain is not None and domain.tenant.name == name}
            kept = min(len(blocks), self.quotas[name].guaranteed) if name in self.quotas else 0
            assert now <= blocks
            assert len(now) >= kept, "a tenant lost a block that it is guaranteed to another tenant's act"

    def _enter(self, name: str, generation: int, salt: str) -> Domain:
        domain = self.ledger.enter(name, generation, salt)
        key = (name, generation, salt)
        assert self.owners.setdefault(domain.owner, key) == key, "an owner number was given twice"
        return domain

    def _name(self, domain: Domain) -> tuple[str, int, str]:
        return (domain.tenant.name, domain.generation.number, domain.salt)

    def _change(self, parts: dict[str, tuple[int, int]]) -> None:
        quotas, left = {}, BLOCKS - 1
        for name, (wanted, limit) in parts.items():
            guaranteed = min(wanted, left)
            left -= guaranteed
            account = self.ledger.tenants.get(name)
            generation, floor = (account.generation, account.floor) if account else (1, 1)
            quotas[name] = Quota(guaranteed, max(limit, guaranteed), BLOCKS, generation, floor)
        self._put(quotas)

    def _put(self, quotas: dict[str, Quota]) -> None:
        self.quotas = quotas
        self.subject.apply(quotas)
        self.deficit = self._deficit()  # a policy may promise what is still in use: it comes back as requests end
