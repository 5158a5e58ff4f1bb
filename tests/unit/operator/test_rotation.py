"""The rotation's rules, one sentence each. The state machine as a whole is run by tests/property/operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from blockwarden_core.keys import SaltKeyring
from blockwarden_core.policy import EnginePolicy, TenantShare
from blockwarden_core.report import EngineReport, GatewayReport, PoolBlocks, TenantBlocks
from blockwarden_operator.rotation import (
    EVERYONE,
    RotationInput,
    RotationPhase,
    RotationRecord,
    RotationState,
    plan_rotation,
    requested_ids,
    served_generations,
)
from blockwarden_operator.salts import new_salt_secret

Entropy = Callable[[int], bytes]
PAYERS = {"acme": "acme", "bob": "shared", "carl": "shared"}
NOW = 1_800_000_000


def given(**changes: object) -> RotationInput:
    base = RotationInput(
        requested={}, payers=PAYERS, stored=None, generations={}, gateways={}, engines={}, engine_policy=None, now=NOW
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.fixture
def idle(entropy: Entropy) -> RotationState:
    keyring = SaltKeyring(secrets=(new_salt_secret(entropy),), generations={"acme": 3, "shared": 5, "canary": 2})
    return RotationState(keyring, RotationRecord(ids={EVERYONE: "old"}))


def gateway(state: RotationState, **changes: object) -> GatewayReport:
    report = GatewayReport(
        pod_uid="g",
        policy_version=1,
        secret_id=state.keyring.current.id,
        generations=state.keyring.generations,
        in_flight={},
        engines=(),
    )
    return report.model_copy(update=changes)


def engine(version: int, *, stale: int = 0) -> EngineReport:
    blocks = TenantBlocks(
        name="acme",
        generation=4,
        floor=4,
        guaranteed_blocks=1,
        limit_blocks=1,
        owned_blocks=0,
        running=0,
        waiting=0,
        stale_blocks=stale,
        stale_requests=0,
    )
    pool = PoolBlocks(total=1, clean=1, owned=0, dirty=0, scrubbing=0)
    return EngineReport(pod_uid="e", boot_nonce="n", policy_version=version, pool=pool, tenants=(blocks,), counters={})


def policy(state: RotationState, version: int = 9) -> EnginePolicy:
    shares = [
        TenantShare(name=name, guaranteed=1, limit=1, generation=generation, floor=floor)
        for name, (generation, floor) in served_generations(state).items()
    ]
    return EnginePolicy(policy_uid="u", version=version, tenants=tuple(shares))


def test_annotations_are_read_by_prefix_and_empty_ids_ask_for_nothing() -> None:
    annotations = {
        "blockwarden.dev/rotate-salt": "a",
        "blockwarden.dev/rotate-salt.acme": "b",
        "blockwarden.dev/rotate-salt.bob": "",
        "blockwarden.dev/rotate-salts": "c",
        "other/rotate-salt": "d",
    }
    assert requested_ids(annotations) == {EVERYONE: "a", "acme": "b"}


def test_nothing_asked_for_is_nothing_done(idle: RotationState) -> None:
    same = plan_rotation(given(stored=idle, requested={EVERYONE: "old"}), lambda _: pytest.fail("drew randomness"))
    assert same == idle


def test_a_new_id_gives_everyone_a_new_secret_and_the_next_generation(idle: RotationState, entropy: Entropy) -> None:
    state = plan_rotation(given(stored=idle, requested={EVERYONE: "new"}), entropy)
    assert state.record.phase is RotationPhase.DISTRIBUTING
    assert state.keyring.generations == {"acme": 4, "shared": 6, "canary": 2}
    assert state.keyring.secrets[0] == idle.keyring.current
    assert state.keyring.current != idle.keyring.current
    assert state.record.previous == {"acme": 3, "shared": 5}
    assert state.record.ids == {EVERYONE: "new"}


def test_a_tenants_id_moves_the_generation_of_whoever_pays_for_it(idle: RotationState, entropy: Entropy) -> None:
    state = plan_rotation(given(stored=idle, requested={EVERYONE: "old", "carl": "x"}), entropy)
    assert state.keyring.generations == {"acme": 3, "shared": 6, "canary": 2}
    assert state.keyring.secrets == idle.keyring.secrets
    assert state.record.ids == {EVERYONE: "old", "carl": "x"}


def test_an_id_of_nobody_waits_for_its_tenant(idle: RotationState, entropy: Entropy) -> None:
    assert plan_rotation(given(stored=idle, requested={EVERYONE: "old", "dave": "x"}), entropy) == idle


def test_a_second_rotation_waits_for_the_first(idle: RotationState, entropy: Entropy) -> None:
    state = plan_rotation(given(stored=idle, requested={EVERYONE: "one"}), entropy)
    again = plan_rotation(given(stored=state, requested={EVERYONE: "two"}, gateways={"g": None}), entropy)
    assert again == state


def test_a_gateway_that_says_nothing_holds_the_distribution(idle: RotationState, entropy: Entropy) -> None:
    state = plan_rotation(given(stored=idle, requested={EVERYONE: "new"}), entropy)
    good = gateway(state)
    for report in (None, gateway(idle), gateway(state, generations={"acme": 3, "shared": 6, "canary": 2})):
        waiting = plan_rotation(given(stored=state, gateways={"g1": good, "g2": report}), entropy)
        assert waiting.record.phase is RotationPhase.DISTRIBUTING
    assert plan_rotation(given(stored=state, gateways={"g1": good}), entropy).record.phase is RotationPhase.DRAINING


def draining(idle: RotationState, entropy: Entropy) -> RotationState:
    state = plan_rotation(given(stored=idle, requested={EVERYONE: "new"}), entropy)
    return plan_rotation(given(stored=state), entropy)


def test_draining_waits_for_old_requests_of_rotating_tenants_only(idle: RotationState, entropy: Entropy) -> None:
    state = draining(idle, entropy)
    old = gateway(state, in_flight={"acme": {"3": 1, "4": 5}})
    new = gateway(state, in_flight={"acme": {"4": 5}, "canary": {"1": 1}})
    assert plan_rotation(given(stored=state, gateways={"g": old}), entropy).record.phase is RotationPhase.DRAINING
    assert plan_rotation(given(stored=state, gateways={"g": None}), entropy).record.phase is RotationPhase.DRAINING
    assert plan_rotation(given(stored=state, gateways={"g": new}), entropy).record.phase is RotationPhase.RETIRING
    late = given(stored=state, gateways={"g": old}, now=NOW + 600)
    assert plan_rotation(late, entropy).record.phase is RotationPhase.RETIRING


def test_retiring_ends_only_when_every_engine_has_the_floor_and_nothing_stale(idle: RotationState, entropy: Entropy) -> None:
    before = draining(idle, entropy)
    state = plan_rotation(given(stored=before), entropy)
    ready = policy(state)

    def phase(engine_policy: EnginePolicy | None, **engines: EngineReport | None) -> RotationPhase:
        return plan_rotation(given(stored=state, engine_policy=engine_policy, engines=engines), entropy).record.phase

    assert phase(ready, e1=engine(9), e2=engine(8)) is RotationPhase.RETIRING
    assert phase(ready, e1=engine(9), e2=None) is RotationPhase.RETIRING
    assert phase(ready, e1=engine(9, stale=1)) is RotationPhase.RETIRING
    assert phase(policy(before), e1=engine(9)) is RotationPhase.RETIRING
    assert phase(None, e1=engine(9)) is RotationPhase.RETIRING
    assert phase(ready, e1=engine(9), e2=engine(10)) is RotationPhase.IDLE
    done = plan_rotation(given(stored=state, engine_policy=ready), entropy)
    assert done.keyring.secrets == (state.keyring.current,)
    assert done.record.previous == {}


def test_what_engines_serve_follows_the_phase(idle: RotationState, entropy: Entropy) -> None:
    first = plan_rotation(given(stored=idle, requested={EVERYONE: "new"}), entropy)
    second = plan_rotation(given(stored=first), entropy)
    third = plan_rotation(given(stored=second), entropy)
    assert [served_generations(state)["acme"] for state in (idle, first, second, third)] == [(3, 3), (3, 3), (4, 3), (4, 4)]
    assert {served_generations(state)["canary"] for state in (idle, first, second, third)} == {(2, 2)}


def test_a_new_policy_begins_idle_and_serves_no_old_id(entropy: Entropy) -> None:
    state = plan_rotation(given(requested={EVERYONE: "born-with"}), entropy)
    assert state.record.phase is RotationPhase.IDLE
    assert state.keyring.generations == {"acme": 1, "shared": 1, "canary": 2}
    assert plan_rotation(given(stored=state, requested={EVERYONE: "born-with"}), entropy) == state


def test_a_lost_keyring_rotates_everyone_from_the_highest_generation_seen(entropy: Entropy) -> None:
    seen = {"acme": 3, "shared": 5, "gone": 7}
    state = plan_rotation(given(generations=seen, requested={EVERYONE: "x"}), entropy)
    assert (state.record.phase, state.record.forced) == (RotationPhase.DISTRIBUTING, True)
    assert state.keyring.generations == {"acme": 4, "shared": 6, "canary": 2}
    assert state.record.previous == {"acme": 3, "shared": 5}
    assert state.record.departed == {"gone": 7}


def test_a_tenant_that_comes_back_goes_on_from_where_it_left(idle: RotationState, entropy: Entropy) -> None:
    without = plan_rotation(given(stored=idle, payers={"bob": "shared"}), entropy)
    assert without.keyring.generations == {"shared": 5, "canary": 2}
    again = plan_rotation(given(stored=without, payers=PAYERS), entropy)
    assert again.keyring.generations == {"acme": 4, "shared": 5, "canary": 2}
    assert again.record.departed == {}


def test_an_earlier_id_rotates_again(idle: RotationState, entropy: Entropy) -> None:
    """Only the last id asks for nothing: a leaked salt must not stay in use because an id was used before."""
    state, generations = idle, []
    for id_ in ("one", "two", "one", "one"):
        for _ in range(5):
            ready = policy(state)
            state = plan_rotation(given(stored=state, requested={EVERYONE: id_}, engine_policy=ready), entropy)
        assert state.record.phase is RotationPhase.IDLE
        generations.append(state.keyring.generations["acme"])
    assert generations == [4, 5, 6, 6]
