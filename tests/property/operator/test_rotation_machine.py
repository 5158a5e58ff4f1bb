"""Rotation under any order of events: gateways and engines that load what is mounted when they like, pods that come, go and fall
silent, rotations asked for at any time, an operator killed between any two writes, a keyring lost by hand.

What must hold whatever happens:
- phases follow each other in order, one at a time;
- an id is acted upon exactly once;
- a generation never falls, for gateways or engines;
- no floor rises above what a live gateway that could be asked has loaded: the requests that it signs are never refused for long;
- the old secret is deleted only when no live engine holds anything of the old generation.

Each broken twin at the end lacks one line of the real thing and is caught.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from blockwarden_core.keys import SaltKeyring
from blockwarden_core.policy import EnginePolicy, TenantShare
from blockwarden_core.report import EngineReport, GatewayReport, PoolBlocks, TenantBlocks
from blockwarden_operator import rotation
from blockwarden_operator.rotation import (
    CANARY_GENERATION,
    EVERYONE,
    RotationInput,
    RotationPhase,
    RotationState,
    plan_rotation,
    served_generations,
)

TENANTS = ("acme", "globex")
PAYERS = {name: name for name in TENANTS}
ORDER = [RotationPhase.IDLE, RotationPhase.DISTRIBUTING, RotationPhase.DRAINING, RotationPhase.RETIRING]
Plan = Callable[[RotationInput, Callable[[int], bytes]], RotationState]


@dataclass
class Gateway:
    """A gateway pod: the keyring it has loaded and what it has dispatched, by tenant and generation."""

    keyring: SaltKeyring
    silent: bool = False
    in_flight: dict[str, dict[int, int]] = field(default_factory=dict)

    def report(self) -> GatewayReport | None:
        if self.silent:
            return None
        return GatewayReport(
            pod_uid="g",
            policy_version=1,
            secret_id=self.keyring.current.id,
            generations=self.keyring.generations,
            in_flight={
                tenant: {str(generation): count for generation, count in counts.items()}
                for tenant, counts in self.in_flight.items()
            },
            engines=(),
        )


@dataclass
class Engine:
    """An engine pod: the policy in force and the blocks it holds, by tenant and generation."""

    policy: EnginePolicy
    silent: bool = False
    blocks: dict[str, set[int]] = field(default_factory=dict)

    def stale(self, tenant: str) -> int:
        share = self.policy.share(tenant)
        floor = share.floor if share else 0
        return sum(generation < floor for generation in self.blocks.get(tenant, set()))

    def report(self) -> EngineReport | None:
        if self.silent:
            return None
        tenants = tuple(
            TenantBlocks(
                name=share.name,
                generation=share.generation,
                floor=share.floor,
                guaranteed_blocks=1,
                limit_blocks=1,
                owned_blocks=0,
                running=0,
                waiting=0,
                stale_blocks=self.stale(share.name),
                stale_requests=0,
            )
            for share in self.policy.tenants
        )
        pool = PoolBlocks(total=1, clean=1, owned=0, dirty=0, scrubbing=0)
        return EngineReport(
            pod_uid="e", boot_nonce="n", policy_version=self.policy.version, pool=pool, tenants=tenants, counters={}
        )


class Rotation(RuleBasedStateMachine):
    """The cluster, its pods, and an operator that is nothing but `plan`."""

    plan: ClassVar[Plan] = staticmethod(plan_rotation)

    def __init__(self) -> None:
        super().__init__()
        self.drawn = 0
        self.now = 1_800_000_000
        self.requested: dict[str, str] = {}
        self.ids = 0
        self.begun = dict.fromkeys(TENANTS, 0)
        self.expected = dict.fromkeys(TENANTS, 1)
        self.stored: RotationState | None = type(self).plan(self._input(None), self._entropy)
        self.policy = self._render(self.stored, 1)
        self.highest = dict(self.stored.keyring.generations)
        self.gateways = {"g0": Gateway(self.stored.keyring)}
        self.engines = {"e0": Engine(self.policy)}
        self.served_ids: list[tuple[str, str]] = []

    def _entropy(self, count: int) -> bytes:
        self.drawn += 1
        return hashlib.shake_256(str(self.drawn).encode()).digest(count)

    def _render(self, state: RotationState, version: int) -> EnginePolicy:
        shares = tuple(
            TenantShare(name=name, guaranteed=1, limit=1, generation=generation, floor=floor)
            for name, (generation, floor) in sorted(served_generations(state).items())
        )
        return EnginePolicy(policy_uid="u", version=version, tenants=shares)

    def _input(self, stored: RotationState | None) -> RotationInput:
        policy = getattr(self, "policy", None)
        return RotationInput(
            requested=dict(self.requested),
            payers=PAYERS,
            stored=stored,
            generations={name: self.highest[name] for name in TENANTS} if policy else {},
            gateways={uid: pod.report() for uid, pod in getattr(self, "gateways", {}).items()},
            engines={uid: pod.report() for uid, pod in getattr(self, "engines", {}).items()},
            engine_policy=policy,
            now=self.now,
            drain_seconds=100,
        )

    @rule(killed=st.booleans())
    def reconcile(self, killed: bool) -> None:
        """Plan, store the keyring with its record in one write, and then the engine policy, unless killed before."""
        before = self.stored
        state = type(self).plan(self._input(before), self._entropy)
        if before is not None:
            self._check_step(before, state)
        else:
            self.expected = {name: self.expected[name] + 1 for name in TENANTS}
        self._check_floors(state)
        self.stored = state
        for name in TENANTS:
            assert state.keyring.generations[name] >= self.highest[name], "a generation fell"
            assert state.keyring.generations[name] == self.expected[name], "an id was acted upon twice, or never"
        self.highest = dict(state.keyring.generations)
        if killed:
            return
        rendered = self._render(state, self.policy.version)
        if rendered != self.policy:
            self.policy = self._render(state, self.policy.version + 1)

    def _check_step(self, before: RotationState, after: RotationState) -> None:
        old, new = ORDER.index(before.record.phase), ORDER.index(after.record.phase)
        assert new in (old, (old + 1) % len(ORDER)), f"{before.record.phase} was followed by {after.record.phase}"
        if old == 0 and new == 1:
            for who, id_ in after.record.ids.items():
                if before.record.ids.get(who) != id_:
                    assert (who, id_) not in self.served_ids, "an id was acted upon twice"
                    self.served_ids.append((who, id_))
            rotated = TENANTS if after.record.ids.get(EVERYONE) != before.record.ids.get(EVERYONE) else after.record.previous
            for name in rotated:
                self.expected[name] += 1
        if old == 3 and new == 0:
            held = [generation for pod in self.engines.values() for name in TENANTS for generation in pod.blocks.get(name, set())]
            for name in before.record.previous:
                for pod in self.engines.values():
                    assert all(generation >= after.keyring.generations[name] for generation in pod.blocks.get(name, set())), held
            assert len(after.keyring.secrets) == 1

    def _check_floors(self, state: RotationState) -> None:
        floors = {name: floor for name, (_, floor) in served_generations(state).items()}
        if state.record.phase is not RotationPhase.RETIRING or self.stored is None:
            return
        if self.stored.record.phase is not RotationPhase.DRAINING:
            return
        if self.now - self.stored.record.since >= 100:
            return
        for pod in self.gateways.values():
            assert all(pod.keyring.generations[name] >= floors[name] for name in TENANTS), "a floor rose above a live gateway"
            for name in TENANTS:
                assert not any(count for generation, count in pod.in_flight.get(name, {}).items() if generation < floors[name])

    @rule(who=st.sampled_from([EVERYONE, *TENANTS]))
    def ask(self, who: str) -> None:
        """Somebody annotates the policy."""
        self.ids += 1
        self.requested[who] = f"id{self.ids}"

    @rule(uid=st.sampled_from(["g0", "g1", "g2"]), load=st.booleans())
    @precondition(lambda self: self.stored is not None)
    def run_gateway(self, uid: str, load: bool) -> None:
        """A gateway pod starts with what is mounted, or loads it again."""
        assert self.stored is not None
        if uid not in self.gateways:
            self.gateways[uid] = Gateway(self.stored.keyring)
        elif load:
            self.gateways[uid].keyring = self.stored.keyring

    @rule(uid=st.sampled_from(["e0", "e1"]), scrub=st.booleans())
    def run_engine(self, uid: str, scrub: bool) -> None:
        """An engine pod starts, or loads its policy and perhaps gets to scrub what is stale."""
        pod = self.engines.setdefault(uid, Engine(self.policy))
        pod.policy = self.policy
        if scrub:
            for name in TENANTS:
                share = self.policy.share(name)
                assert share is not None
                pod.blocks[name] = {generation for generation in pod.blocks.get(name, set()) if generation >= share.floor}

    @rule(gateway=st.sampled_from(["g0", "g1", "g2"]), engine=st.sampled_from(["e0", "e1"]), tenant=st.sampled_from(TENANTS))
    def request(self, gateway: str, engine: str, tenant: str) -> None:
        """A request is dispatched; an engine admits it only at its floor or above."""
        if gateway not in self.gateways or engine not in self.engines:
            return
        pod, target = self.gateways[gateway], self.engines[engine]
        generation = pod.keyring.generations[tenant]
        share = target.policy.share(tenant)
        if share is None or generation < share.floor:
            return
        counts = pod.in_flight.setdefault(tenant, {})
        counts[generation] = counts.get(generation, 0) + 1
        target.blocks.setdefault(tenant, set()).add(generation)

    @rule(gateway=st.sampled_from(["g0", "g1", "g2"]))
    def finish(self, gateway: str) -> None:
        """A gateway's requests end."""
        if gateway in self.gateways:
            self.gateways[gateway].in_flight.clear()

    @rule()
    @precondition(lambda self: self.stored is not None)
    def calm(self) -> None:
        """A while in which gateways load and finish, engines load but have not scrubbed, and the operator looks once."""
        for uid, pod in self.gateways.items():
            pod.silent = False
            self.run_gateway(uid, load=True)
            pod.in_flight.clear()
        for uid, target in self.engines.items():
            target.silent = False
            self.run_engine(uid, scrub=False)
        self.reconcile(killed=False)

    @rule(uid=st.sampled_from(["g0", "g1", "g2", "e0", "e1"]))
    def remove(self, uid: str) -> None:
        """A pod goes."""
        self.gateways.pop(uid, None)
        self.engines.pop(uid, None)

    @rule(uid=st.sampled_from(["g0", "g1", "g2", "e0", "e1"]), silent=st.booleans())
    def mute(self, uid: str, silent: bool) -> None:
        """A pod falls silent, or answers again."""
        pod = self.gateways.get(uid) or self.engines.get(uid)
        if pod is not None:
            pod.silent = silent

    @rule(seconds=st.sampled_from([1, 30, 101]))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    @precondition(lambda self: self.stored is not None and self.drawn < 12)
    def lose_keyring(self) -> None:
        """Somebody deletes the Secret; what the annotations ask for counts as done by the forced rotation."""
        self.stored = None
        self.served_ids += [pair for pair in self.requested.items() if pair not in self.served_ids]

    @invariant()
    def the_canary_stands_still(self) -> None:
        share = self.policy.share("canary")
        assert share is not None
        assert (share.generation, share.floor) == (CANARY_GENERATION, CANARY_GENERATION)


QUICK = settings(max_examples=300, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
THOROUGH_TWIN = settings(QUICK, max_examples=3000, derandomize=True, phases=(Phase.generate,))
"""A twin need only be caught, not explained."""


def test_rotation_under_any_order_of_events() -> None:
    run_state_machine_as_test(Rotation, settings=QUICK)


def twin(plan: Plan) -> type[Rotation]:
    return type("BrokenRotation", (Rotation,), {"plan": staticmethod(plan)})


def without_silent_gateways(given: RotationInput, entropy: Callable[[int], bytes]) -> RotationState:
    """Broken: a gateway that does not answer is taken for gone."""
    return plan_rotation(replace(given, gateways={uid: report for uid, report in given.gateways.items() if report}), entropy)


def without_engines(given: RotationInput, entropy: Callable[[int], bytes]) -> RotationState:
    """Broken: nobody waits for the engines' scrubs."""
    return plan_rotation(replace(given, engines={}), entropy)


def without_memory(given: RotationInput, entropy: Callable[[int], bytes]) -> RotationState:
    """Broken: the ids acted upon are kept in the operator's memory, which a restart empties."""
    if given.stored is not None:
        forgotten = given.stored.record.model_copy(update={"ids": {}})
        given = replace(given, stored=RotationState(given.stored.keyring, forgotten))
    return plan_rotation(given, entropy)


def with_two_steps(given: RotationInput, entropy: Callable[[int], bytes]) -> RotationState:
    """Broken: a second step is taken on the observations of the first."""
    state = plan_rotation(given, entropy)
    return plan_rotation(replace(given, stored=state), entropy)


def from_one_again(given: RotationInput, entropy: Callable[[int], bytes]) -> RotationState:
    """Broken: a lost keyring begins at generation 1."""
    return plan_rotation(replace(given, generations={}), entropy)


@pytest.mark.parametrize(
    "plan",
    [without_silent_gateways, without_engines, without_memory, with_two_steps, from_one_again],
    ids=lambda plan: plan.__name__,
)
def test_a_broken_twin_is_caught(plan: Plan) -> None:
    with pytest.raises((AssertionError, BaseExceptionGroup)):
        run_state_machine_as_test(twin(plan), settings=THOROUGH_TWIN)


def test_the_module_has_no_clock_and_no_randomness_of_its_own() -> None:
    assert not {"time", "random", "secrets", "os", "asyncio"} & set(vars(rotation))
