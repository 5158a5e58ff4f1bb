"""Each condition by the sentences that make it true or not."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from blockwarden_core.report import EngineReport, EngineSeen, GatewayReport, PoolBlocks
from blockwarden_operator.api import AcceptedReason, ConditionType
from blockwarden_operator.checks import Refusal
from blockwarden_operator.conditions import (
    Enforcement,
    Verdict,
    check_accepted,
    check_isolation,
    check_network,
    check_ready,
    check_secrets,
    check_weights,
    check_workload,
    plan_conditions,
)
from blockwarden_operator.observed import Pod, PortProbe, is_of_deployment, read_pod
from blockwarden_operator.rotation import RotationPhase, RotationRecord

ENGINE = Pod("engine-1", "e1", "10.0.0.1", "engine", True, False, None)
GATEWAY = Pod("gateway-1", "g1", "10.0.0.2", "gateway", True, False, None)
CLOSED = PortProbe(api_open=False, events_open=False, control_open=True)


def summary(verdict: Verdict) -> tuple[str, str]:
    return verdict.status, verdict.reason


def test_a_refusal_is_accepted_false_with_its_words() -> None:
    refused = check_accepted(Refusal(AcceptedReason.SECRET_MISSING, "spec.x: mend it"))
    assert (*summary(refused), refused.message) == ("False", "SecretMissing", "spec.x: mend it")
    assert summary(check_accepted(None)) == ("True", "Accepted")


@pytest.mark.parametrize(
    ("problems", "record", "expected"),
    [
        ((), RotationRecord(), ("True", "Provisioned")),
        (("b", "a"), RotationRecord(), ("False", "ApiKeyRefused")),
        ((), RotationRecord(forced=True, phase=RotationPhase.DRAINING), ("False", "KeyringLost")),
        ((), RotationRecord(phase=RotationPhase.DRAINING), ("True", "Provisioned")),
    ],
)
def test_secrets(problems: tuple[str, ...], record: RotationRecord, expected: tuple[str, str]) -> None:
    assert summary(check_secrets(problems, record)) == expected


@pytest.mark.parametrize(
    ("engines", "probes", "expected"),
    [
        ([ENGINE], None, ("Unknown", "ProbeFailed")),
        ([], {}, ("Unknown", "Pending")),
        ([ENGINE], {"e1": CLOSED}, ("True", "Enforced")),
        ([ENGINE], {"e1": PortProbe(api_open=True, events_open=False, control_open=True)}, ("False", "NotEnforced")),
        ([ENGINE], {"e1": PortProbe(api_open=False, events_open=True, control_open=True)}, ("False", "NotEnforced")),
        ([ENGINE], {"e1": PortProbe(api_open=False, events_open=False, control_open=False)}, ("Unknown", "ProbeFailed")),
    ],
)
def test_network(engines: list[Pod], probes: Any, expected: tuple[str, str]) -> None:
    assert summary(check_network(engines, probes)) == expected


def deployment(**status: Any) -> dict[str, Any]:
    base = {"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}
    return {"metadata": {"name": "demo-engine", "generation": 3}, "status": {**base, **status}}


@pytest.mark.parametrize(
    ("live", "drifted", "expected"),
    [
        (deployment(), False, ("True", "Available")),
        (None, False, ("False", "Progressing")),
        (deployment(), True, ("False", "Progressing")),
        (deployment(observedGeneration=2), False, ("False", "Progressing")),
        (deployment(updatedReplicas=1), False, ("False", "Progressing")),
        (deployment(availableReplicas=1), False, ("False", "Progressing")),
        (deployment(replicas=3), False, ("False", "Progressing")),
        (
            deployment(availableReplicas=0, conditions=[{"type": "Progressing", "status": "False", "reason": "Deadline"}]),
            False,
            ("False", "Failed"),
        ),
    ],
)
def test_workloads(live: Any, drifted: bool, expected: tuple[str, str]) -> None:
    assert summary(check_workload(ConditionType.ENGINE_READY, live, [], replicas=2, drifted=drifted)) == expected


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        ({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}, "Unschedulable"),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}, "ImagePullBackOff"),
        ({"containerStatuses": [{"restartCount": 3, "ready": False, "state": {"running": {}}}]}, "CrashLoopBackOff"),
        ({"containerStatuses": [{"restartCount": 3, "ready": True, "state": {"running": {}}}]}, ""),
        ({"containerStatuses": [{"restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
    ],
)
def test_a_pod_in_trouble_is_named(status: dict[str, Any], trouble: str) -> None:
    pod = read_pod({"metadata": {"name": "engine-1", "uid": "e1"}, "status": status})
    assert pod.trouble == trouble
    verdict = check_workload(ConditionType.ENGINE_READY, deployment(availableReplicas=1), [pod], replicas=2, drifted=False)
    assert ("pod engine-1: " + trouble in verdict.message) == bool(trouble)


def pod_of(replica_set: str, *, kind: str = "ReplicaSet", controller: bool = True, digest: str = "6f9c") -> dict[str, Any]:
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": replica_set, "uid": "r", "controller": controller}
    return {"metadata": {"labels": {"pod-template-hash": digest}, "ownerReferences": [reference]}}


@pytest.mark.parametrize(
    "pod",
    [
        {"metadata": {"labels": {"pod-template-hash": "6f9c"}}},
        {"metadata": {}},
        pod_of("demo-gateway-6f9c", controller=False),
        pod_of("demo-gateway-6f9c", kind="StatefulSet"),
        pod_of("demo-gateway-2-6f9c"),
        pod_of("demo-gateway-", digest=""),
        pod_of("demo-engine-6f9c"),
    ],
)
def test_a_pod_that_only_looks_like_one_of_ours_is_none(pod: dict[str, Any]) -> None:
    assert not is_of_deployment(pod, "demo-gateway")


def test_a_pod_of_the_deployments_own_replica_set_is_one_of_ours() -> None:
    assert is_of_deployment(pod_of("demo-gateway-6f9c"), "demo-gateway")


def test_no_replicas_serve_nothing() -> None:
    assert summary(check_workload(ConditionType.ENGINE_READY, deployment(), [], replicas=0, drifted=False)) == (
        "False",
        "ScaledToZero",
    )


def job(kind: str) -> dict[str, Any]:
    return {"metadata": {"name": "demo-weights"}, "status": {"conditions": [{"type": kind, "status": "True"}]}}


def test_weights() -> None:
    assert check_weights(job("Complete")) is None
    assert [
        summary(verdict) for verdict in (check_weights(None), check_weights({}), check_weights(job("Failed"))) if verdict
    ] == [
        ("False", "WeightsPending"),
        ("False", "WeightsPending"),
        ("False", "WeightsFailed"),
    ]


def gateway_report(*engines: EngineSeen, version: int = 7, error: str | None = None) -> GatewayReport:
    return GatewayReport(
        pod_uid="g1",
        policy_version=version,
        secret_id="s",
        generations={},
        in_flight={},
        engines=engines,
        reload_error=error,
    )


def engine_report(version: int = 7) -> EngineReport:
    pool = PoolBlocks(total=1, clean=1, owned=0, dirty=0, scrubbing=0)
    return EngineReport(pod_uid="e1", boot_nonce="n", policy_version=version, pool=pool, tenants=(), counters={})


def seen(attested: bool) -> EngineSeen:
    return EngineSeen(address="a", pod_uid="e1", boot_nonce="n", attested=attested, reason="no hooks")


@pytest.mark.parametrize(
    ("engines", "gateway", "engine", "expected"),
    [
        ([ENGINE], gateway_report(seen(True)), engine_report(), ("True", "Attested")),
        ([], gateway_report(seen(True)), engine_report(), ("Unknown", "Pending")),
        ([ENGINE], gateway_report(), engine_report(), ("Unknown", "Pending")),
        ([ENGINE], None, engine_report(), ("Unknown", "Pending")),
        ([ENGINE], gateway_report(seen(False)), engine_report(), ("False", "AttestationFailed")),
        ([ENGINE], gateway_report(seen(True)), engine_report(6), ("False", "PolicyNotInForce")),
        ([ENGINE], gateway_report(seen(True), error="broken"), engine_report(), ("False", "PolicyNotInForce")),
    ],
)
def test_isolation(engines: list[Pod], gateway: Any, engine: Any, expected: tuple[str, str], now: datetime) -> None:
    given = Enforcement(engines, [GATEWAY], {"e1": engine}, {"g1": gateway}, engine_version=7, gateway_version=7)
    assert summary(check_isolation(given, now)) == expected


def test_a_fresh_document_may_be_on_its_way(now: datetime) -> None:
    version = int((now - timedelta(seconds=60)).timestamp() * 1000)
    given = Enforcement([ENGINE], [GATEWAY], {"e1": engine_report()}, {"g1": gateway_report(seen(True))}, version, 7)
    assert summary(check_isolation(given, now)) == ("True", "Attested")
    assert summary(check_isolation(given, now + timedelta(seconds=121))) == ("False", "PolicyNotInForce")


def test_ready_has_the_reason_of_the_first_that_is_not() -> None:
    good = Verdict(ConditionType.ACCEPTED, "True", "Accepted", "")
    unknown = Verdict(ConditionType.NETWORK_ISOLATED, "Unknown", "Pending", "wait")
    bad = Verdict(ConditionType.ENGINE_READY, "False", "Failed", "broken")
    assert summary(check_ready([good])) == ("True", "Ready")
    assert summary(check_ready([good, unknown, bad])) == ("False", "Pending")


def test_a_time_moves_only_with_its_status(now: datetime) -> None:
    generations = dict.fromkeys(ConditionType, 4)
    first = plan_conditions([Verdict(ConditionType.READY, "False", "A", "a")], [], generations=generations, now=now)
    later = now + timedelta(hours=1)
    same = plan_conditions([Verdict(ConditionType.READY, "False", "B", "b")], first, generations=generations, now=later)
    turned = plan_conditions([Verdict(ConditionType.READY, "True", "C", "c")], same, generations=generations, now=later)
    assert [condition.last_transition_time for condition in (*first, *same, *turned)] == [now, now, later]
    assert [condition.reason for condition in (*first, *same, *turned)] == ["A", "B", "C"]
    assert same[0].observed_generation == 4
