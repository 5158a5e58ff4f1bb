"""What the state machine of KV blocks knows by itself: every block's content, every request, every quota, and what must hold.

The rules are in `pool_rules.py`. Everything here is enumerated afresh from the observed state, on purpose: the code under test
keeps its sums incrementally.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant

from blockwarden_core.policy import EnginePolicy
from blockwarden_engine.departures import Departures
from blockwarden_engine.domains import Domain, Tenant
from blockwarden_engine.fairness import Fairness, Flow
from blockwarden_engine.ledger import CACHED, CLEAN, DIRTY, IN_USE, SCRUBBING, Ledger
from blockwarden_engine.quotas import Quota

BLOCKS: Final = 13
POOL: Final = BLOCKS - 1
SLOTS: Final = 8
TENANTS: Final = ("a", "b", "c")
STEPS: Final = 80
PROFILE_ENV: Final = "BLOCKWARDEN_MACHINE"
SEED_ENV: Final = "BLOCKWARDEN_MACHINE_SEED"

_common = settings(stateful_step_count=STEPS, deadline=None, database=None, suppress_health_check=list(HealthCheck))
settings.register_profile("blockwarden-test", _common, max_examples=90)
settings.register_profile("blockwarden-nightly", _common, max_examples=360)
settings.register_profile("blockwarden-twin", _common, max_examples=1500, phases=(Phase.generate,))


@dataclass(frozen=True)
class Profile:
    """How much the machine is run: in rounds with a seed each, so that a round's search tree fits in memory, until it has taken
    `steps` steps. Hypothesis decides how many of a round's examples' steps it takes."""

    name: str
    steps: int

    @property
    def settings(self) -> settings:
        return settings.get_profile(f"blockwarden-{self.name}")


PROFILES: Final = {"test": Profile("test", 20_000), "nightly": Profile("nightly", 1_000_000)}
TWIN: Final = settings.get_profile("blockwarden-twin")
"""For twins, which must fail: found is enough, the smallest example is not needed."""


def profile() -> Profile:
    """The profile that the environment names."""
    return PROFILES[os.environ.get(PROFILE_ENV, "test")]


def first_seed() -> int:
    """Of the rounds' seeds, which follow one another."""
    return int(os.environ.get(SEED_ENV, "0"))


@dataclass(frozen=True)
class Parts:
    """The code under test: the engine's own, but for what a planted bug replaces."""

    ledger: type[Ledger] = Ledger
    departures: type[Departures] = Departures
    fairness: type[Fairness] = Fairness


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

    def reset(self, deferred: int) -> bool:
        """vLLM's reset of the prefix cache, while requests that are gone still hold `deferred` blocks; whether it was done."""

    def make_room(self, domain: Domain, count: int) -> None: ...

    def apply(self, quotas: Mapping[str, Quota], draining: Mapping[str, Quota]) -> None: ...

    def references(self, block: int) -> int: ...


@dataclass(eq=False)
class Request:
    """One unfinished request; one that was preempted runs on nothing."""

    domain: Domain
    flow: Flow
    blocks: list[int] = field(default_factory=list)
    running: bool = True


class PoolWorld(RuleBasedStateMachine):
    """The state and the invariants. The machine is its own worker: it zeroes only what it is told to, and in its own time."""

    taken = 0
    """Steps that all machines together have taken since the count was set to 0."""

    def __init__(self, make: Callable[[type[Ledger], int], Subject], parts: Parts) -> None:
        super().__init__()
        self._make, self._parts = make, parts
        self.now = 0.0
        self.version = 0
        self.key = self.step = 0
        self._boot()

    def _boot(self) -> None:
        """An engine starts: all memory is zero, and nobody is known."""
        self.subject = self._make(self._parts.ledger, BLOCKS)
        self.ledger = self.subject.ledger
        self.departures = self._parts.departures()
        self.fairness = self._parts.fairness(100, SLOTS)
        self.content: list[tuple[str, int, str] | None] = [None] * BLOCKS
        self.requests: list[Request] = []
        self.deferred: list[tuple[Domain, list[int]]] = []
        self.policy: EnginePolicy | None = None
        self.quotas: dict[str, Quota] = {}
        self.left: dict[str, tuple[float, Quota]] = {}
        self.grace = 0.0
        self.ordered: deque[tuple[int, list[int]]] = deque()
        self.zeroed: deque[tuple[int, int]] = deque()
        self.residue: dict[int, tuple[str, int]] = {}
        self.published: dict[int, Domain] = {}
        self.owners: dict[int, tuple[str, int, str]] = {}
        self.keys: dict[int, int] = {}
        self.deficit = 0
        self.cleaned = 0

    # ---- invariants ------------------------------------------------------------------------------------------------------

    @invariant()
    def count(self) -> None:
        PoolWorld.taken += 1

    @invariant()
    def nobody_reads_what_another_wrote(self) -> None:
        """DESIGN §8, 3."""
        for block in range(1, BLOCKS):
            if self.ledger.state(block) == CLEAN:
                assert self.content[block] is None, f"block {block} is clean and holds content"
        for domain, blocks in self._held():
            for block in blocks:
                assert self.ledger.domains[block] is domain, "a request uses a block of another trust domain"
                assert self.ledger.state(block) == IN_USE
                assert self.content[block] in (None, self._name(domain)), "a request can read another's content"

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
    def nobody_outstays_the_grace_period(self) -> None:
        for request in self.requests:
            name = request.domain.tenant.name
            assert name in self.quotas or self.now < self.left[name][0] + self.grace, "a tenant that left runs on for ever"

    @invariant()
    def quotas_are_those_in_force(self) -> None:
        """Also that a tenant that left gives its quota back with its last request."""
        force = self._force()
        for tenant in self.ledger.tenants.values():
            quota = force.get(tenant.name, Quota(0, 0, 0, 1, 1))
            assert (tenant.guaranteed, tenant.limit) == (quota.guaranteed, quota.limit), "a tenant has another quota than its own"
        assert sum(quota.guaranteed for quota in force.values()) <= POOL, "more is guaranteed than there is"

    @invariant()
    def the_books_are_right(self) -> None:
        ledger, held = self.ledger, dict.fromkeys(TENANTS, 0)
        used = [block for _, blocks in self._held() for block in blocks]
        for block in range(1, BLOCKS):
            if (domain := ledger.domains[block]) is not None:
                held[domain.tenant.name] += 1
            references = self.subject.references(block)
            assert (references > 0) == (ledger.state(block) == IN_USE)
            assert references == used.count(block)
        for tenant in ledger.tenants.values():
            assert tenant.owned == held[tenant.name] == sum(domain.owned for domain in tenant.domains.values())
            assert tenant.unmet == max(0, tenant.guaranteed - tenant.owned)
            assert tenant.requests == sum(request.domain.tenant is tenant for request in self.requests)
        states = [ledger.state(block) for block in range(1, BLOCKS)]
        assert (ledger.clean, ledger.cached) == (states.count(CLEAN), states.count(CACHED))
        assert (len(ledger.dirty), ledger.scrubbing) == (states.count(DIRTY), states.count(SCRUBBING))

    @invariant()
    def stale_blocks_count_until_they_are_zero(self) -> None:
        for tenant in self.ledger.tenants.values():
            stale = [block for block, (name, number) in self.residue.items() if name == tenant.name and tenant.is_stale(number)]
            assert tenant.stale_blocks == len(stale), "the report of stale blocks is wrong"
        for name, _ in self.residue.values():
            assert name in self.ledger.tenants, "a tenant was forgotten before its blocks were zero"

    @invariant()
    def every_cleaned_block_has_a_latency(self) -> None:
        steps, seconds = self.ledger.latency.steps, self.ledger.latency.seconds
        assert sum(steps.counts) == sum(seconds.counts) == self.cleaned
        assert steps.total >= self.cleaned, "no block is clean again before a step has gone down"

    # ---- the oracle ------------------------------------------------------------------------------------------------------

    def _held(self) -> list[tuple[Domain, list[int]]]:
        """Who uses which blocks: unfinished requests, and finished ones whose last step is not done."""
        return [(request.domain, request.blocks) for request in self.requests] + self.deferred

    def _force(self) -> dict[str, Quota]:
        """Quotas of the policy, and of tenants that left and still have requests: these get what the others leave."""
        rest = POOL - sum(quota.guaranteed for quota in self.quotas.values())
        force, alive = dict(self.quotas), {request.domain.tenant.name for request in self.requests}
        for name, (_, quota) in self.left.items():
            guaranteed = min(quota.guaranteed, rest)
            rest -= guaranteed
            if name in alive:
                force[name] = Quota(guaranteed, quota.limit, quota.capacity, quota.generation, quota.floor)
        return force

    def _allowed(self, domain: Domain) -> int:
        """The quota rule, from the enumerated state alone."""
        ledger, tenant, force = self.ledger, domain.tenant, self._force()
        clean = sum(ledger.state(block) == CLEAN for block in range(1, BLOCKS))
        cached = sum(ledger.state(block) == CACHED and ledger.domains[block] is domain for block in range(1, BLOCKS))
        unmet = {name: max(0, quota.guaranteed - self._owned(name)) for name, quota in force.items()}
        if (quota := force.get(tenant.name)) is None:
            return cached
        spare = max(0, clean - sum(unmet.values()))
        return max(0, min(clean, unmet[tenant.name] + spare, quota.limit - self._owned(tenant.name))) + cached

    def _owned(self, name: str) -> int:
        return sum(domain is not None and domain.tenant.name == name for domain in self.ledger.domains)

    def _deficit(self) -> int:
        unmet = sum(max(0, quota.guaranteed - self._owned(name)) for name, quota in self._force().items())
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
        force = self._force()
        for name, blocks in before.items():
            now = {block for block, domain in enumerate(self.ledger.domains) if domain is not None and domain.tenant.name == name}
            kept = min(len(blocks), force[name].guaranteed) if name in force else 0
            assert now <= blocks
            assert len(now) >= kept, "a tenant lost a block that it is guaranteed to another tenant's act"

    def _name(self, domain: Domain) -> tuple[str, int, str]:
        return (domain.tenant.name, domain.generation.number, domain.salt)
