"""Documents in ConfigMaps that somebody edited: what the operator reads back decides nothing unless the operator sealed it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from blockwarden_core.keys import EngineKeys
from blockwarden_core.policy import EnginePolicy
from blockwarden_core.salt import MAX_GENERATION
from blockwarden_core.sealed import Sealed, seal
from blockwarden_operator.plan import Plan
from blockwarden_operator.salts import read_engine_keys

Children = dict[tuple[str, str], Any]


def condition(plan: Plan, kind: str) -> Any:
    return next(entry for entry in plan.status["conditions"] if entry["type"] == kind)


def engine_policy(plan: Plan) -> EnginePolicy:
    (manifest,) = (m for m in plan.apply if (m["kind"], m["metadata"]["name"]) == ("ConfigMap", "demo-engine"))
    return EnginePolicy.read(Sealed.read(manifest["data"]["engine.json"]).payload)


def edited_engine_policy(world: Any, *edits: tuple[str, str], keys: EngineKeys | None = None) -> Children:
    """The children with an edited engine policy: under the old MAC, or sealed anew by a holder of `keys`."""
    forged = copy.deepcopy(world.observed.children["ConfigMap", "demo-engine"])
    sealed = Sealed.read(forged["data"]["engine.json"])
    payload = sealed.payload
    for old, new in edits:
        assert old in payload, "the edit did not take: the test would prove nothing"
        payload = payload.replace(old, new)
    text = sealed.model_copy(update={"payload": payload}).text() if keys is None else seal("policy", payload, keys)
    forged["data"]["engine.json"] = text
    return {**world.observed.children, ("ConfigMap", "demo-engine"): forged}


def stored_keys(world: Any) -> EngineKeys:
    keys = read_engine_keys(world.observed.children["Secret", "demo-engine-key"])
    assert keys is not None
    return keys


def test_a_policy_that_somebody_forged_is_sealed_anew(world: Any) -> None:
    first = world.take()
    children = edited_engine_policy(world, ('"40%"', '"90%"'), ('"version":', '"version":9'))
    again = world.plan(children=children, now=world.observed.now + timedelta(seconds=1))
    assert engine_policy(again).tenants == engine_policy(first).tenants
    assert engine_policy(again).version == engine_policy(first).version + 1000, "time, and not the forged number, counts"


@pytest.mark.parametrize("forged", [10**14, MAX_GENERATION])
def test_generations_of_an_engine_policy_that_somebody_edited_count_for_nothing(world: Any, forged: int) -> None:
    world.take()
    edits = (('"generation":1', f'"generation":{forged}'), ('"floor":1', f'"floor":{forged}'))
    plan = world.plan(children=edited_engine_policy(world, *edits))
    assert (plan.status["rotation"]["phase"], plan.status["rotation"]["generation"]) == ("Idle", 1)
    assert {share.generation for share in engine_policy(plan).tenants if share.name != "canary"} == {1}
    assert "KeyringLost" not in [notice.reason for notice in plan.notices]


def test_the_same_edit_by_a_holder_of_the_engine_key_counts(world: Any) -> None:
    """The broken twin: without the seal the edited generation would be followed."""
    world.take()
    children = edited_engine_policy(world, ('"generation":1', f'"generation":{10**14}'), keys=stored_keys(world))
    assert world.plan(children=children).status["rotation"]["generation"] == 10**14 + 1


def test_generations_survive_the_loss_of_keyring_and_engine_key(world: Any) -> None:
    world.take()
    policy = copy.deepcopy(world.observed.policy)
    policy["metadata"]["annotations"] = {"blockwarden.dev/rotate-salt": "now"}
    world.take(policy=policy)  # begun: the record knows that generation 1 is being left
    children = {ref: m for ref, m in world.observed.children.items() if ref != ("Secret", "demo-engine-key")}
    without_keyring = {ref: m for ref, m in children.items() if ref != ("Secret", "demo-salt-keyring")}
    by_status = world.plan(children=without_keyring)
    assert by_status.status["rotation"]["generation"] == 3
    damaged = copy.deepcopy(children["Secret", "demo-salt-keyring"])
    damaged["data"]["keyring.json"] = "bm9uZQ=="
    by_record = world.plan(
        children={**children, ("Secret", "demo-salt-keyring"): damaged}, policy={**world.observed.policy, "status": {}}
    )
    assert by_record.status["rotation"]["generation"] == 3


def refused_with_copy(world: Any, rewrite: Callable[[str], str]) -> Plan:
    """The plan while the present spec is refused and the sealed copy of the last accepted one has been rewritten."""
    world.take()
    accepted = copy.deepcopy(world.observed.children["ConfigMap", "demo-accepted"])
    text = accepted["data"]["accepted.json"]
    accepted["data"]["accepted.json"] = rewrite(text)
    assert accepted["data"]["accepted.json"] != text, "the edit did not take: the test would prove nothing"
    world.spec(gateway={"tls": {"secretName": "absent"}})
    return world.plan(referenced={"absent": None}, children={**world.observed.children, ("ConfigMap", "demo-accepted"): accepted})


EDITS = {
    "another image": ('"replicas":1', '"image":"evil.example/engine:1","replicas":1'),
    "another scope": ('"scope":"Tenant"', '"scope":"None"'),
    "another TenantPolicy's": ('"policyUid":"uid-1"', '"policyUid":"uid-2"'),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_copy_of_the_accepted_spec_never_comes_into_force(world: Any, edit: str) -> None:
    def rewrite(text: str) -> str:
        sealed = Sealed.read(text)
        return sealed.model_copy(update={"payload": sealed.payload.replace(*EDITS[edit], 1)}).text()

    plan = refused_with_copy(world, rewrite)
    assert (plan.apply, plan.delete) == ((), ())
    assert condition(plan, "Accepted")["reason"] == "SecretMissing"


@pytest.mark.parametrize("edit", EDITS)
def test_the_same_edit_of_the_copy_by_a_holder_of_the_engine_key_comes_into_force(world: Any, edit: str) -> None:
    """The broken twin: it is the seal that keeps an edited copy out. A copy of another object stays out even so."""

    def rewrite(text: str) -> str:
        return seal("accepted", Sealed.read(text).payload.replace(*EDITS[edit], 1), stored_keys(world))

    assert bool(refused_with_copy(world, rewrite).apply) == (edit != "another TenantPolicy's")


def test_a_sealed_copy_that_undoes_isolation_is_refused_by_the_rules(world: Any) -> None:
    def rewrite(text: str) -> str:
        payload = Sealed.read(text).payload.replace('"extraArgs":[]', '"extraArgs":["--enable-log-requests"]')
        return seal("accepted", payload, stored_keys(world))

    assert refused_with_copy(world, rewrite).apply == ()
