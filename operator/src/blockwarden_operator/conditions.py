"""What is true of a TenantPolicy, and since when. Pure: each `check_` function turns observations into one verdict.

A condition is True only for a fact that was seen, False for one that was seen to fail, Unknown while nothing can be said.
Messages hold nothing that changes by itself, or every reconcile would write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from blockwarden_core.report import EngineReport, GatewayReport

from .api import (
    AcceptedReason,
    Condition,
    ConditionType,
    IsolationReason,
    NetworkReason,
    ReadyReason,
    SecretsReason,
    WorkloadReason,
)
from .api.conditions import MAX_MESSAGE
from .checks import Refusal
from .observed import Pod, PortProbe
from .render.names import Manifest
from .rotation import RotationPhase, RotationRecord

Status = Literal["True", "False", "Unknown"]
PROPAGATION_SECONDS = 180
"""How long a changed document may take into a running pod before that counts as a fault: kubelet refreshes within two minutes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One condition before it has a time."""

    type: ConditionType
    status: Status
    reason: str
    message: str


def check_accepted(refusal: Refusal | None) -> Verdict:
    """Whether the spec is in force."""
    if refusal is None:
        return Verdict(ConditionType.ACCEPTED, "True", AcceptedReason.ACCEPTED, "the spec is in force")
    return Verdict(ConditionType.ACCEPTED, "False", refusal.reason, refusal.message)


def check_secrets(problems: Sequence[str], record: RotationRecord) -> Verdict:
    """Whether all key material is in place and every API key identifies its subject."""
    if record.forced and record.phase is not RotationPhase.IDLE:
        message = "the salt keyring was lost: every tenant's salt is rotating, and caches fill anew"
        return Verdict(ConditionType.SECRETS_READY, "False", SecretsReason.KEYRING_LOST, message)
    if problems:
        return Verdict(ConditionType.SECRETS_READY, "False", SecretsReason.API_KEY_REFUSED, "; ".join(sorted(problems)))
    return Verdict(ConditionType.SECRETS_READY, "True", SecretsReason.PROVISIONED, "keys, salts and certificates are in place")


def check_network(engines: Sequence[Pod], probes: Mapping[str, PortProbe] | None) -> Verdict:
    """Whether the network turned the operator's probes away.

    Args:
        engines: the ready engine pods; a pod that does not listen yet proves nothing.
    """
    kind = ConditionType.NETWORK_ISOLATED
    if probes is None:
        message = "the operator does not probe the pod network: run it in the cluster, with BLOCKWARDEN_PROBE=true"
        return Verdict(kind, "Unknown", NetworkReason.PROBE_FAILED, message)
    seen = [(pod, probes[pod.uid]) for pod in sorted(engines, key=lambda pod: pod.name) if pod.uid in probes]
    for pod, probe in seen:
        if probe.api_open or probe.events_open:
            port = "API" if probe.api_open else "KV-event"
            message = (
                f"the {port} port of pod {pod.name} is open to the operator, which no NetworkPolicy allows: "
                "use a network plug-in that enforces NetworkPolicies"
            )
            return Verdict(kind, "False", NetworkReason.NOT_ENFORCED, message)
    if not seen:
        return Verdict(kind, "Unknown", NetworkReason.PENDING, "no engine is ready to be probed")
    for pod, probe in seen:
        if not probe.control_open:
            message = (
                f"the internal port of pod {pod.name} does not open to the operator, so that closed ports prove nothing: "
                "see that the operator's pods carry the labels of BLOCKWARDEN_POD_LABELS"
            )
            return Verdict(kind, "Unknown", NetworkReason.PROBE_FAILED, message)
    return Verdict(kind, "True", NetworkReason.ENFORCED, "engine ports are closed to a probe that may not reach them")


def check_workload(kind: ConditionType, live: Manifest | None, pods: Iterable[Pod], *, replicas: int, drifted: bool) -> Verdict:
    """Whether as many pods as asked for run this spec, from the Deployment's own status; its pods say what is wrong."""
    if replicas == 0:
        return Verdict(kind, "False", WorkloadReason.SCALED_TO_ZERO, "replicas is 0: nothing is served")
    if live is None or drifted:
        return Verdict(kind, "False", WorkloadReason.PROGRESSING, "the Deployment is being brought to this spec")
    status = live.get("status") or {}
    failures = {
        entry["type"]: entry
        for entry in status.get("conditions") or []
        if (entry["type"], entry["status"]) in (("Progressing", "False"), ("ReplicaFailure", "True"))
    }
    ready = ready_replicas(live)
    if ready >= replicas and int(status.get("replicas") or 0) == replicas:
        return Verdict(kind, "True", WorkloadReason.AVAILABLE, f"{replicas} of {replicas} pods are ready")
    message = f"{ready} of {replicas} pods are ready"
    if troubled := next((pod for pod in sorted(pods, key=lambda pod: pod.name) if pod.trouble), None):
        message += f"; pod {troubled.name}: {troubled.trouble}: see its events and its log"
    if failures:
        why = ", ".join(sorted(str(entry.get("reason")) for entry in failures.values()))
        return Verdict(kind, "False", WorkloadReason.FAILED, f"{message} ({why}): see the events of Deployment {_name(live)}")
    return Verdict(kind, "False", WorkloadReason.PROGRESSING, message)


def ready_replicas(live: Manifest | None) -> int:
    """The pods of a Deployment that are available and of its latest template."""
    metadata, status = (live or {}).get("metadata") or {}, (live or {}).get("status") or {}
    if int(status.get("observedGeneration") or 0) < int(metadata.get("generation") or 0):
        return 0
    return min(int(status.get("updatedReplicas") or 0), int(status.get("availableReplicas") or 0))


def check_weights(job: Manifest | None) -> Verdict | None:
    """Why engines cannot run yet because of their weights; None when the download has succeeded."""
    kind = ConditionType.ENGINE_READY
    conditions = {entry["type"]: entry for entry in ((job or {}).get("status") or {}).get("conditions") or []}
    if conditions.get("Complete", {}).get("status") == "True":
        return None
    if job is not None and conditions.get("Failed", {}).get("status") == "True":
        message = f"Job {_name(job)} could not download the weights: see its log, then delete it to try again"
        return Verdict(kind, "False", WorkloadReason.WEIGHTS_FAILED, message)
    return Verdict(kind, "False", WorkloadReason.WEIGHTS_PENDING, "the weights are being downloaded")


@dataclass(frozen=True, slots=True)
class Enforcement:
    """The pods that must agree and the documents that they must have in force."""

    engines: Sequence[Pod]
    gateways: Sequence[Pod]
    engine_reports: Mapping[str, EngineReport | None]
    gateway_reports: Mapping[str, GatewayReport | None]
    engine_version: int
    gateway_version: int


def check_isolation(given: Enforcement, now: datetime) -> Verdict:
    """Whether every ready gateway has attested every ready engine and all run the documents in force."""
    kind = ConditionType.ISOLATION_VERIFIED
    if not given.engines or not given.gateways:
        return Verdict(kind, "Unknown", IsolationReason.PENDING, "no engine and gateway are ready to attest each other")
    if stale := _not_in_force(given, now):
        return Verdict(kind, "False", IsolationReason.POLICY_NOT_IN_FORCE, stale)
    pending = None
    for gateway in sorted(given.gateways, key=lambda pod: pod.name):
        report = given.gateway_reports.get(gateway.uid)
        seen = {entry.pod_uid: entry for entry in report.engines} if report else {}
        for engine in sorted(given.engines, key=lambda pod: pod.name):
            entry = seen.get(engine.uid)
            if entry is None:
                pending = pending or f"gateway {gateway.name} has not yet attested engine {engine.name}"
            elif not entry.attested:
                message = f"gateway {gateway.name} does not trust engine {engine.name}: {entry.reason[:200]}"
                return Verdict(kind, "False", IsolationReason.ATTESTATION_FAILED, message)
    if pending:
        return Verdict(kind, "Unknown", IsolationReason.PENDING, pending)
    return Verdict(kind, "True", IsolationReason.ATTESTED, "every gateway has attested every engine")


def _not_in_force(given: Enforcement, now: datetime) -> str | None:
    """The first pod that does not run its document although it has had the time, or says that it cannot."""
    reports: list[tuple[Pod, EngineReport | GatewayReport | None, int]] = [
        *((pod, given.engine_reports.get(pod.uid), given.engine_version) for pod in given.engines),
        *((pod, given.gateway_reports.get(pod.uid), given.gateway_version) for pod in given.gateways),
    ]
    for pod, report, version in sorted(reports, key=lambda entry: entry[0].name):
        if report is None:
            continue
        # A version is the time of its making in milliseconds.
        overdue = report.policy_version < version and now.timestamp() - version / 1000 > PROPAGATION_SECONDS
        if overdue or report.reload_error is not None:
            return f"pod {pod.name} does not run the policy in force: see its log"
    return None


def check_ready(verdicts: Iterable[Verdict]) -> Verdict:
    """Whether all the others hold; if not, why the first of them does not."""
    for verdict in verdicts:
        if verdict.status != "True":
            return Verdict(ConditionType.READY, "False", verdict.reason, f"{verdict.type}: {verdict.message}")
    return Verdict(ConditionType.READY, "True", ReadyReason.READY, "all tenants are served in isolation")


def plan_conditions(
    verdicts: Iterable[Verdict], previous: Iterable[Condition], *, generations: Mapping[ConditionType, int], now: datetime
) -> tuple[Condition, ...]:
    """Verdicts with times: a time moves only when the status does.

    Args:
        generations: the generation of the spec that each condition is about.
    """
    before = {condition.type: condition for condition in previous}
    planned = []
    for verdict in verdicts:
        last = before.get(verdict.type)
        unchanged = last is not None and last.status == verdict.status
        planned.append(
            Condition(
                type=verdict.type.value,
                status=verdict.status,
                observed_generation=generations[verdict.type],
                last_transition_time=last.last_transition_time if last is not None and unchanged else now,
                reason=str(verdict.reason),
                message=verdict.message[:MAX_MESSAGE],
            )
        )
    return tuple(planned)


def _name(live: Mapping[str, Any]) -> str:
    return str((live.get("metadata") or {}).get("name"))
