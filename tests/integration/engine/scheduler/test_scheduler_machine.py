"""vLLM's own scheduler with tenants in it, through any order of requests, aborts, policies, resets and departures.

The state machine of tests/property/engine knows what blocks may do; this one knows what an engine does with them: chunked
prefill, preemption and resumption as vLLM decides them, frees deferred to the end of a step in flight, acknowledgements that come
two steps later. The rig's worker raises as soon as a request would read what is not its own, and the rig checks after each step
that every clean block is zero.
"""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any

import pytest
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from blockwarden_engine.errors import BlockwardenError
from blockwarden_engine.ledger import CLEAN, Ledger

pytestmark = [pytest.mark.integration, pytest.mark.timeout(4 * 3600)]

TENANTS = ("a", "b", "c")
POOL, CAPS = 31, (None, 1, 2)
SELDOM = st.integers(0, 5).map(lambda drawn: drawn == 5)
EXAMPLES = {"test": 25, "nightly": 2000}


class SchedulerMachine(RuleBasedStateMachine):
    """One engine per example."""

    taken = 0

    def __init__(self, make: Any, share: Any) -> None:
        super().__init__()
        self._make, self._share = make, share
        self.shares = {name: share(name, 8, 16) for name in TENANTS}
        self.generations = dict.fromkeys(TENANTS, 1)
        self.rig = make(*self.shares.values(), blocks=POOL + 1, slots=6, step_tokens=64)
        self.vetoes = 0

    @rule(
        name=st.sampled_from(TENANTS), user=st.sampled_from(("", "u", "v")), prompt=st.integers(1, 180),
        tokens=st.integers(1, 60),
    )  # fmt: skip
    def add(self, name: str, user: str, prompt: int, tokens: int) -> None:
        self.rig.add(self.rig.mounts.token(name, user, self.generations[name]), prompt, tokens=tokens)

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.rig.step()

    @precondition(lambda self: self._live())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self._live()))
        self.rig.abort(name)
        self.rig.finished[name] = "abort"

    @rule(running=st.booleans(), now=SELDOM)
    def reset_prefix_cache(self, running: bool, now: bool) -> None:
        if now:
            self.rig.scheduler.reset_prefix_cache(reset_running_requests=running)

    @rule(data=st.data(), now=SELDOM)
    def change_policy(self, data: st.DataObject, now: bool) -> None:
        """Quotas, caps and who is there, all at once; some of it too much to promise."""
        if not now:
            return
        self.shares = {
            name: self._share(
                name, (guaranteed := data.draw(st.integers(0, 14))), guaranteed + data.draw(st.integers(0, 16)),
                max_sequences=data.draw(st.sampled_from(CAPS)), generation=self.generations[name],
                floor=data.draw(st.integers(1, self.generations[name])),
            )
            for name in sorted(data.draw(st.sets(st.sampled_from(TENANTS), min_size=1)))
        }  # fmt: skip
        self._put(data.draw(st.sampled_from((0, 20))))

    @precondition(lambda self: self._live())
    @rule(data=st.data(), now=SELDOM)
    def deregister(self, data: st.DataObject, now: bool) -> None:
        """A tenant leaves in the middle of a request."""
        if now:
            self.shares.pop(self.rig.requests[data.draw(st.sampled_from(self._live()))].trust_domain.tenant.name, None)
            self._put(20)

    @rule(name=st.sampled_from(TENANTS), now=SELDOM)
    def raise_generation(self, name: str, now: bool) -> None:
        if now and name in self.shares:
            self.generations[name] += 1
            self.shares[name] = self.shares[name].model_copy(update={"generation": self.generations[name]})
            self._put(20)

    @rule(seconds=st.integers(1, 15))
    def pass_time(self, seconds: int) -> None:
        self.rig.now += seconds

    def _put(self, grace: int) -> None:
        self.rig.share(*self.shares.values(), grace=grace)

    def _live(self) -> list[str]:
        return [
            name for name, request in self.rig.requests.items()
            if name in self.rig.scheduler.requests and name not in self.rig.finished and request.trust_domain is not None
        ]  # fmt: skip

    @invariant()
    def nobody_is_above_its_quota_or_cap(self) -> None:
        SchedulerMachine.taken += 1
        scheduler = self.rig.scheduler
        running = Counter(request.trust_domain.tenant.name for request in scheduler.running)
        assert sum(running.values()) <= 6
        pool = scheduler.report().pool
        assert pool.total == POOL
        guaranteed = sum(tenant.guaranteed for tenant in scheduler.ledger.tenants.values())
        assert guaranteed <= POOL, "more is guaranteed than there is"
        assert scheduler.counters["preemption_vetoes"] == scheduler.counters["guard_violations"] == 0
        for tenant in scheduler.ledger.tenants.values():
            assert not (tenant.lru and not tenant.registered), "a tenant that left has cached blocks"
            assert tenant.registered or tenant.requests or not tenant.limit, "a tenant that is gone has a quota"

    def teardown(self) -> None:
        """Whatever happened, the engine comes to rest: every request ends, and every block that nobody keeps is clean."""
        self.rig.now += 1000
        self.rig.run(4000)
        report = self.rig.scheduler.report()
        assert not self.rig.scheduler.requests
        assert report.scrub.backlog == 0
        assert report.pool.owned == report.pool.cached
        assert {tenant.name for tenant in report.tenants} == set(self._applied())
        assert set(self.rig.requests) <= set(self.rig.finished), "a request was lost"
        self._make.forget()

    def _applied(self) -> list[str]:
        return [share.name for share in self.rig.scheduler._applied.tenants]


@pytest.fixture
def factory(make_rig: Any, share: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes machines; no watcher runs beside them, because they poll themselves."""
    monkeypatch.setattr("blockwarden_engine.policy.PolicyWatcher.start", lambda self: None)
    return lambda: SchedulerMachine(make_rig, share)


def test_the_scheduler_keeps_tenants_apart_in_any_order(factory: Any, world: ModuleType, capsys: Any) -> None:
    profile = world.profile()
    SchedulerMachine.taken = 0
    chosen = settings(profile.settings, max_examples=EXAMPLES[profile.name], stateful_step_count=50)
    run_state_machine_as_test(seed(world.first_seed())(factory), settings=chosen)
    with capsys.disabled():
        print(f"\nscheduler machine: {SchedulerMachine.taken} steps", flush=True)
    assert SchedulerMachine.taken >= 40 * EXAMPLES[profile.name]


def clean_at_once(ledger: Ledger, domain: Any, block: int, *, soil: Any = Ledger._soil) -> None:
    """A freed block is clean without a scrub."""
    soil(ledger, domain, block)
    ledger.dirty.remove(block)
    ledger._state[block] = CLEAN
    ledger._clean.append(block)


PLANTED = {
    "ledger.Ledger._soil": clean_at_once,
    "domains.Domain.keeps_cache": property(lambda self: True),  # a tenant that left keeps its cache
    "ledger.Ledger._end": lambda self, tenant: None,  # and its quota
}


@pytest.mark.parametrize("where", PLANTED)
def test_a_planted_bug_is_caught(factory: Any, world: ModuleType, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(f"blockwarden_engine.{where}", PLANTED[where])
    with pytest.raises((AssertionError, BlockwardenError)):
        run_state_machine_as_test(factory, settings=settings(world.TWIN, max_examples=200, stateful_step_count=50))
