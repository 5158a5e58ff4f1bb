"""What the plan decides beyond the goldens: which spec is in force, what goes, what waits, when to look again."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from blockwarden_core.policy import EnginePolicy
from blockwarden_core.sealed import Sealed
from blockwarden_operator.observed import RefusedObject
from blockwarden_operator.plan import REFUSED_SECONDS, ROTATING_SECONDS, STEADY_SECONDS, UNREADY_SECONDS, Plan, plan_unstored


def condition(plan: Plan, kind: str) -> Any:
    return next(entry for entry in plan.status["conditions"] if entry["type"] == kind)


def named(plan: Plan, kind: str) -> dict[str, Any]:
    return {manifest["metadata"]["name"]: manifest for manifest in plan.apply if manifest["kind"] == kind}


def engine_policy(plan: Plan) -> EnginePolicy:
    return EnginePolicy.read(Sealed.read(named(plan, "ConfigMap")["demo-engine"]["data"]["engine.json"]).payload)


def test_a_plan_on_its_own_result_changes_nothing_and_draws_nothing(world: Any) -> None:
    world.take()
    first = world.take()  # the second look sees the Deployments that the first one made
    world.entropy = lambda _: pytest.fail("drew randomness")
    again = world.plan(now=world.observed.now + timedelta(hours=1))
    assert again.apply == first.apply
    assert again.delete == ()
    assert again.notices == ()
    assert again.status == first.status


def test_the_same_observations_make_the_same_plan(make_world: Callable[[], Any]) -> None:
    assert make_world().plan() == make_world().plan()


def test_what_confines_comes_before_what_runs(world: Any) -> None:
    kinds = [manifest["kind"] for manifest in world.plan().apply]
    assert kinds.index("NetworkPolicy") < kinds.index("Secret") < kinds.index("ConfigMap") < kinds.index("Deployment")


def test_a_refused_spec_leaves_the_last_accepted_one_in_force(world: Any) -> None:
    first = world.take()
    world.spec(gateway={"replicas": 9, "tls": {"secretName": "absent"}})
    refused = world.take(referenced={"absent": None})
    assert refused.apply == first.apply
    assert condition(refused, "Accepted")["reason"] == "SecretMissing"
    assert condition(refused, "Accepted")["observedGeneration"] == 5
    assert condition(refused, "GatewayReady")["observedGeneration"] == 4
    assert condition(refused, "Ready")["reason"] == "SecretMissing"
    mended = world.take(referenced={"absent": {"metadata": {}, "data": {"tls.crt": "eA==", "tls.key": "eA=="}}})
    assert named(mended, "Deployment")["demo-gateway"]["spec"]["replicas"] == 9
    assert condition(mended, "Accepted")["status"] == "True"


def test_a_spec_that_cannot_be_read_is_refused_with_the_field(world: Any) -> None:
    first = world.take()
    world.spec(tenants=[{"name": "acme", "kvCache": {"guaranteed": "lots"}}])
    refused = world.plan()
    assert refused.apply == first.apply
    assert condition(refused, "Accepted")["reason"] == "Unreadable"
    assert "spec.tenants" in condition(refused, "Accepted")["message"]


def test_a_first_spec_that_is_refused_touches_nothing(world: Any) -> None:
    plan = world.plan(foreign=("ConfigMap demo-engine",))
    assert (plan.apply, plan.delete) == ((), ())
    assert plan.requeue_after == REFUSED_SECONDS
    assert {entry["type"] for entry in plan.status["conditions"]} == {"Accepted", "Ready"}


def test_shared_quotas_of_two_units_are_refused(world: Any) -> None:
    tenants = [{"name": "a", "kvCache": {"guaranteed": 50}}, {"name": "b", "kvCache": {"guaranteed": "10%"}}]
    world.spec(tenants=tenants, isolation={"scope": "None"})
    assert "use one unit" in condition(world.plan(), "Accepted")["message"]


def test_tenants_of_scope_none_share_one_quota_and_one_generation(world: Any) -> None:
    tenants = [
        {"name": "a", "kvCache": {"guaranteed": "20%", "limit": "90%"}, "limits": {"maxSequences": 4}},
        {"name": "b", "kvCache": {"guaranteed": "10%"}, "limits": {"maxSequences": 2}},
        {"name": "c", "scope": "Tenant", "kvCache": {"guaranteed": "30%"}},
    ]
    world.spec(tenants=tenants, isolation={"scope": "None"})
    plan = world.take()
    shares = {share.name: share for share in engine_policy(plan).tenants}
    assert set(shares) == {"c", "shared", "canary"}
    assert (shares["shared"].guaranteed, shares["shared"].limit, shares["shared"].max_sequences) == ("30%", "100%", 6)
    assert {entry["name"]: entry.get("saltGeneration") for entry in plan.status["tenants"]} == {
        "a": None,
        "b": None,
        "c": 1,
        "shared": 1,
    }


def test_versions_rise_only_with_contents(world: Any, now: datetime) -> None:
    first = engine_policy(world.take())
    assert first.version == int(now.timestamp() * 1000)
    same = engine_policy(world.take(now=now + timedelta(hours=1)))
    assert same == first
    world.spec(tenants=[{"name": "acme", "kvCache": {"guaranteed": "50%"}}])
    backwards = engine_policy(world.take(now=now - timedelta(hours=1)))
    assert backwards.version == first.version + 1


def test_a_tenant_that_goes_takes_its_key_with_it(world: Any) -> None:
    world.take()
    world.spec(tenants=[{"name": "acme", "kvCache": {"guaranteed": "40%"}}])
    plan = world.plan()
    assert plan.delete == (("Secret", "demo-key-globex"),)
    assert {share.name for share in engine_policy(plan).tenants} == {"acme", "canary"}


def test_engines_wait_for_their_weights_and_the_ones_before_stay(world: Any) -> None:
    world.take()
    world.spec(model={"name": "tiny", "source": {"huggingFace": {"repo": "org/model", "revision": "abc"}}})
    waiting = world.take()
    assert "demo-engine" not in named(waiting, "Deployment")
    assert ("Deployment", "demo-engine") not in waiting.delete
    assert condition(waiting, "EngineReady")["reason"] == "WeightsPending"
    (job,) = named(waiting, "Job")
    done = {**world.observed.children["Job", job], "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    ready = world.take(children={**world.observed.children, ("Job", job): done})
    args = named(ready, "Deployment")["demo-engine"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[0] == f"--model=/models/{job.removeprefix('demo-weights-')}"

    world.spec(model={"name": "tiny", "source": {"huggingFace": {"repo": "org/model", "revision": "def"}}})
    assert ("Job", job) in world.plan().delete


def test_only_the_download_may_talk_to_the_outside(world: Any) -> None:
    world.spec(model={"name": "tiny", "source": {"huggingFace": {"repo": "org/model"}}})
    policies = named(world.plan(), "NetworkPolicy")
    outside = [name for name, policy in policies.items() for rule in policy["spec"]["egress"] if "to" not in rule]
    assert outside == ["demo-weights"]
    assert policies["demo-engine"]["spec"]["egress"] == []
    assert policies["demo-default-deny"]["spec"] | {"podSelector": 0} == {
        "podSelector": 0,
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [],
        "egress": [],
    }


def test_events_are_closed_until_they_are_on_and_somebody_is_named(world: Any) -> None:
    def ports(engine: dict[str, Any]) -> list[int]:
        world.spec(engine=engine)
        rules = named(world.plan(), "NetworkPolicy")["demo-engine"]["spec"]["ingress"]
        return [port["port"] for rule in rules for port in rule["ports"]]

    peer = {"podSelector": {"matchLabels": {"app": "router"}}}
    assert ports({"kvEvents": {"enabled": False, "allowFrom": [peer]}}) == [8000, 9400]
    assert ports({"kvEvents": {"enabled": True}}) == [8000, 9400]
    assert ports({"kvEvents": {"enabled": True, "allowFrom": [peer]}}) == [8000, 9400, 5557]


def test_the_gateways_public_port_is_open_to_whom_the_policy_says(world: Any) -> None:
    def public() -> Any:
        return named(world.plan(), "NetworkPolicy")["demo-gateway"]["spec"]["ingress"][0]

    assert "from" not in public()
    world.spec(gateway={"allowFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]})
    assert public() == {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 8080, "protocol": "TCP"}]}


def test_the_salt_keyring_is_mounted_by_gateways_only_and_the_ca_by_nobody(world: Any) -> None:
    mounted = {
        name: {
            volume["secret"]["secretName"] for volume in deployment["spec"]["template"]["spec"]["volumes"] if "secret" in volume
        }
        for name, deployment in named(world.plan(), "Deployment").items()
    }
    assert mounted == {
        "demo-engine": {"demo-engine-key", "demo-engine-tls"},
        "demo-gateway": {
            "demo-salt-keyring",
            "demo-engine-key",
            "demo-api-keys",
            "demo-gateway-client-tls",
            "demo-gateway-internal-tls",
        },
    }


def test_no_template_can_loosen_a_pod(world: Any) -> None:
    template = {"securityContext": {"runAsUser": 1000}, "labels": {"team": "x"}, "priorityClassName": "high"}
    world.spec(engine={"template": template}, gateway={"template": template})
    for deployment in named(world.plan(), "Deployment").values():
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsUser"] == 1000
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert pod["containers"][0]["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert "hostNetwork" not in pod


def test_generated_keys_are_long_and_stay(world: Any) -> None:
    first = named(world.take(), "Secret")
    key = base64.b64decode(first["demo-key-acme"]["data"]["api-key"]).decode()
    assert len(key) == 46
    assert named(world.take(), "Secret")["demo-key-acme"] == first["demo-key-acme"]


def test_the_next_look_is_soon_while_something_moves(world: Any) -> None:
    assert world.take().requeue_after == STEADY_SECONDS
    assert world.take(engines={"e1": None}).requeue_after == UNREADY_SECONDS
    policy = copy.deepcopy(world.observed.policy)
    policy["metadata"]["annotations"] = {"blockwarden.dev/rotate-salt": "now"}
    plan = world.take(policy=policy)
    assert plan.requeue_after == ROTATING_SECONDS
    assert plan.status["rotation"]["phase"] == "Distributing"
    assert [notice.reason for notice in plan.notices] == ["RotationStarted"]


def test_a_lost_keyring_is_told_from_a_new_policy(world: Any) -> None:
    world.take()
    children = {ref: m for ref, m in world.observed.children.items() if ref != ("Secret", "demo-salt-keyring")}
    lost = world.plan(children=children)
    assert "KeyringLost" in [notice.reason for notice in lost.notices]
    assert lost.status["rotation"] | {"phaseSince": 0, "rotatedAt": 0} == {
        "phase": "Distributing",
        "generation": 2,
        "forced": True,
        "phaseSince": 0,
        "rotatedAt": 0,
    }
    assert engine_policy(lost) == engine_policy(world.plan())


def test_an_old_keyring_put_back_is_a_lost_one(world: Any) -> None:
    world.take()
    old = copy.deepcopy(world.observed.children["Secret", "demo-salt-keyring"])
    policy = copy.deepcopy(world.observed.policy)
    policy["metadata"]["annotations"] = {"blockwarden.dev/rotate-salt": "now"}
    for _ in range(5):
        world.take(policy={**policy, "status": world.observed.policy["status"]})
    assert world.observed.policy["status"]["rotation"]["phase"] == "Idle"
    restored = world.take(children={**world.observed.children, ("Secret", "demo-salt-keyring"): old})
    assert restored.status["rotation"]["forced"] is True
    assert restored.status["rotation"]["generation"] == 3
    assert "KeyringLost" in [notice.reason for notice in restored.notices]


def test_an_overlong_id_rotates_once_and_is_recorded_as_its_digest(world: Any) -> None:
    world.take()
    policy = copy.deepcopy(world.observed.policy)
    policy["metadata"]["annotations"] = {
        "blockwarden.dev/rotate-salt": "x" * 2000,
        "blockwarden.dev/rotate-salt.acme": "y" * 2000,
    }
    plan = world.take(policy=policy)
    rotation = plan.status["rotation"]
    assert (rotation["phase"], rotation["generation"]) == ("Distributing", 2)
    assert rotation["observedID"].startswith("sha256:")
    assert len(rotation["observedID"]) == 71
    assert rotation["tenantIDs"]["acme"] != rotation["observedID"]
    assert "annotate with a shorter one" in plan.notices[-1].note
    for _ in range(5):
        plan = world.take()
    assert (plan.status["rotation"]["phase"], plan.status["rotation"]["generation"]) == ("Idle", 2)


def test_tenants_come_and_go_without_end_and_the_status_holds(world: Any) -> None:
    for round_ in range(5):
        names = [f"t{round_}-{number}" for number in range(90)]
        world.spec(tenants=[{"name": name, "kvCache": {"guaranteed": "1%"}} for name in names])
        policy = copy.deepcopy(world.observed.policy)
        policy["metadata"]["annotations"] = {f"blockwarden.dev/rotate-salt.{name}": "1" for name in names}
        for _ in range(5):
            plan = world.take(policy=policy | {"status": world.observed.policy.get("status", {})})
    assert set(plan.status["rotation"]["tenantIDs"]) == set(names)


def test_a_phase_that_waits_for_very_many_pods_names_the_first_of_them(world: Any) -> None:
    world.take()
    policy = copy.deepcopy(world.observed.policy)
    policy["metadata"]["annotations"] = {"blockwarden.dev/rotate-salt": "now"}
    plan = world.take(policy=policy, gateways={f"g{number:03}": None for number in range(300)})
    assert plan.status["rotation"]["waitingFor"] == [f"g{number:03}" for number in range(128)]


def test_very_many_bad_keys_fit_into_a_message(world: Any) -> None:
    keys = [{"name": f"k{n}", "secretRef": {"name": "a" * 200, "key": f"k{n}"}} for n in range(16)]
    tenants = [{"name": f"t{n}", "apiKeys": keys, "kvCache": {"guaranteed": "1%"}} for n in range(90)]
    world.spec(tenants=tenants)
    plan = world.plan(referenced={"a" * 200: None})
    assert condition(plan, "SecretsReady")["reason"] == "ApiKeyRefused"


REFUSED = RefusedObject(
    "Deployment", "demo-engine", "engine", "Invalid", ("spec.template.spec.containers[0].resources.limits[!!]",)
)


def test_a_spec_counts_as_accepted_only_after_everything_that_follows_from_it(world: Any) -> None:
    last = world.plan().apply[-1]
    assert (last["kind"], last["metadata"]["name"]) == ("ConfigMap", "demo-accepted")


def test_only_a_spec_that_was_never_taken_is_tried(world: Any) -> None:
    def tried(plan: Plan) -> list[str]:
        return [f"{manifest['kind']} {manifest['metadata']['name']}" for manifest in plan.trial]

    first = world.take()
    assert {"Deployment demo-engine", "Deployment demo-gateway", "NetworkPolicy demo-engine"} <= set(tried(first))
    assert tried(world.take()) == []
    world.spec(model={"name": "tiny", "source": {"huggingFace": {"repo": "org/model"}}})
    waiting = world.take()
    assert "demo-engine" not in named(waiting, "Deployment")
    assert "Deployment demo-engine" in tried(waiting), "also while the weights are not there yet"
    world.spec(gateway={"replicas": 9, "tls": {"secretName": "absent"}})
    assert tried(world.plan(referenced={"absent": None})) == [], "what is refused already is not asked about"


def test_what_the_apiserver_refuses_leaves_the_last_accepted_spec_in_force(world: Any) -> None:
    first = world.take()
    world.spec(tenants=[{"name": "acme", "kvCache": {"guaranteed": "40%"}}])
    refused = world.plan(refused=(REFUSED,))
    assert (refused.apply, refused.delete, refused.trial) == (first.apply, (), ())
    assert condition(refused, "Accepted")["reason"] == "ObjectRefused"
    assert condition(refused, "Accepted")["message"].startswith(
        "spec.engine: Deployment demo-engine is refused by the apiserver "
        "(Invalid at spec.template.spec.containers[0].resources.limits[!!]): mend that in spec.engine, "
    )
    assert [notice.reason for notice in refused.notices if notice.warning] == ["ObjectRefused"]


def test_a_status_is_not_ahead_of_secrets_that_were_refused(world: Any) -> None:
    """A generation in the status above the stored one would be taken for a lost keyring, and rotate once more each time."""
    world.take()
    policy = copy.deepcopy(world.observed.policy)
    policy["metadata"]["annotations"] = {"blockwarden.dev/rotate-salt": "now"}
    ahead = world.plan(policy=policy).status
    assert ahead["tenants"][0]["saltGeneration"] == 2
    secret = RefusedObject("Secret", "demo-salt-keyring", "policy", "Forbidden", ())
    kept = plan_unstored(replace(world.observed, refused=(secret,))).status
    assert (kept["tenants"][0]["saltGeneration"], kept["rotation"]["phase"]) == (1, "Idle")
    assert {entry["status"] for entry in kept["conditions"]} == {"False"}


def test_a_generated_key_outlives_a_typo_in_the_listed_ones_and_opens_nothing_meanwhile(world: Any) -> None:
    kept = named(world.take(), "Secret")["demo-key-acme"]

    def acme(*names: str) -> None:
        keys = [{"name": name, "secretRef": {"name": name, "key": "k"}} for name in names]
        others = [{"name": "globex", "kvCache": {"guaranteed": "40%"}}]
        world.spec(tenants=[{"name": "acme", "kvCache": {"guaranteed": "40%"}, **({"apiKeys": keys} if keys else {})}, *others])

    def in_force(plan: Plan) -> list[str]:
        digests = json.loads(base64.b64decode(named(plan, "Secret")["demo-api-keys"]["data"]["digests.json"]))
        return [key["tenant"] for key in digests["keys"]]

    acme("mispelt")
    typo = world.take(referenced={"mispelt": None})
    assert ("Secret", "demo-key-acme") not in typo.delete
    assert in_force(typo) == ["globex"]
    assert condition(typo, "SecretsReady")["reason"] == "ApiKeyRefused"
    acme()
    mended = world.take()
    assert named(mended, "Secret")["demo-key-acme"] == kept
    assert in_force(mended) == ["acme", "globex"]
    acme("good", "mispelt")
    good = world.take(referenced={"mispelt": None, "good": {"data": {"k": base64.b64encode(b"x" * 32).decode()}}})
    assert good.delete == (("Secret", "demo-key-acme"),)
    assert in_force(good) == ["acme", "globex"]
