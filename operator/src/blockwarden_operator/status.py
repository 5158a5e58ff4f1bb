"""The status of a TenantPolicy, and the Events that its changes are worth. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from blockwarden_core.identity import CANARY_TENANT, SHARED_TENANT

from .api import (
    MAX_WAITING,
    Condition,
    ConditionType,
    PodCount,
    Replicas,
    RotationStatus,
    TenantPolicySpec,
    TenantPolicyStatus,
    TenantStatus,
)
from .conditions import ready_replicas
from .material import Material, read_engine_policy
from .observed import Observed
from .render.gateway import endpoint
from .render.names import Owner
from .render.shares import payers
from .rotation import (
    EVERYONE,
    LONG_ID_PREFIX,
    MAX_ID_LENGTH,
    ROTATE_ANNOTATION,
    RotationPhase,
    RotationRecord,
    RotationState,
    waiting_for_engines,
    waiting_for_gateways,
)


class EventReason(StrEnum):
    """Reasons of Events beside those of conditions: the whole list."""

    ROTATION_STARTED = "RotationStarted"
    ROTATION_ADVANCED = "RotationAdvanced"
    ROTATION_FINISHED = "RotationFinished"
    ROTATION_TENANT_UNKNOWN = "RotationTenantUnknown"
    KEYRING_LOST = "KeyringLost"
    ENGINE_KEY_REPLACED = "EngineKeyReplaced"
    CERTIFICATE_AUTHORITY_REPLACED = "CertificateAuthorityReplaced"
    API_KEY_REPLACED = "ApiKeyReplaced"


@dataclass(frozen=True, slots=True)
class Notice:
    """An Event to post about the policy."""

    warning: bool
    reason: str
    note: str


_WORTH_AN_EVENT: Final = frozenset(ConditionType) - {ConditionType.ENGINE_READY, ConditionType.GATEWAY_READY}
"""Workloads have Events of their own, from Kubernetes."""


def plan_status(
    observed: Observed,
    spec: TenantPolicySpec,
    owner: Owner,
    material: Material,
    conditions: tuple[Condition, ...],
    *,
    drain_seconds: int,
) -> TenantPolicyStatus:
    """The whole status of a policy whose last accepted spec is `spec`."""
    return TenantPolicyStatus(
        observed_generation=observed.policy["metadata"]["generation"],
        conditions=conditions,
        endpoint=endpoint(spec, owner),
        replicas=Replicas(
            engine=_count(observed, owner.engine, spec.engine.replicas),
            gateway=_count(observed, owner.gateway, spec.gateway.replicas),
        ),
        tenant_count=len(spec.tenants),
        rotation=_rotation(observed, owner, material, drain_seconds),
        tenants=_tenants(spec, owner, material),
    )


def _count(observed: Observed, deployment: str, desired: int) -> PodCount:
    return PodCount(desired=desired, ready=ready_replicas(observed.child("Deployment", deployment)))


def _tenants(spec: TenantPolicySpec, owner: Owner, material: Material) -> tuple[TenantStatus, ...]:
    generations, paying = material.rotation.keyring.generations, payers(spec)
    listed = [
        TenantStatus(
            name=tenant.name,
            api_key_secret=owner.generated_key(tenant.name) if tenant.name in material.generated else None,
            salt_generation=generations.get(tenant.name) if paying[tenant.name] == tenant.name else None,
        )
        for tenant in spec.tenants
    ]
    if SHARED_TENANT in generations:
        listed.append(TenantStatus(name=SHARED_TENANT, salt_generation=generations[SHARED_TENANT]))
    return tuple(listed)


def _rotation(observed: Observed, owner: Owner, material: Material, drain_seconds: int) -> RotationStatus:
    state, record = material.rotation, material.rotation.record
    draining = record.phase is RotationPhase.DRAINING
    return RotationStatus(
        observed_id=record.ids.get(EVERYONE),
        tenant_ids={who: id_ for who, id_ in record.ids.items() if who != EVERYONE} or None,
        phase=record.phase,
        generation=max(
            (generation for name, generation in state.keyring.generations.items() if name != CANARY_TENANT), default=None
        ),
        forced=record.forced,
        rotated_at=_moment(record.rotated_at) if record.rotated_at is not None else None,
        phase_since=_moment(record.since),
        deadline=_moment(record.since) + timedelta(seconds=drain_seconds) if draining else None,
        unknown_tenants=material.unknown_tenants or None,
        waiting_for=tuple(_waiting_for(observed, owner, state)[:MAX_WAITING]) or None,
    )


def _waiting_for(observed: Observed, owner: Owner, state: RotationState) -> list[str]:
    """The names of the pods that the phase waits for."""
    names = {pod.uid: pod.name for pod in observed.pods}
    match state.record.phase:
        case RotationPhase.DISTRIBUTING:
            uids = waiting_for_gateways(state.keyring, observed.gateways)
        case RotationPhase.RETIRING:
            policy = read_engine_policy(observed, owner)
            uids = waiting_for_engines(state, policy, observed.engines)
        case RotationPhase.IDLE | RotationPhase.DRAINING:
            uids = []
    return sorted(names.get(uid, uid) for uid in uids)


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)


def plan_notices(previous: TenantPolicyStatus, conditions: Iterable[Condition], material: Material | None) -> tuple[Notice, ...]:
    """The Events of one reconcile: transitions and replacements only, so that an unchanged object has none."""
    before: Mapping[str, Condition] = {condition.type: condition for condition in previous.conditions}
    notices = [
        Notice(condition.status == "False", condition.reason, condition.message)
        for condition in conditions
        if condition.type in _WORTH_AN_EVENT
        and condition.status != "Unknown"
        and _has_turned(before.get(condition.type), condition)
    ]
    if material is not None:
        notices += [*_replacements(material), *_phases(previous, material.rotation), *_unknown(previous, material)]
    return tuple(notices)


def _has_turned(last: Condition | None, condition: Condition) -> bool:
    """Whether a condition says something new. A new policy that is not yet ready is no news."""
    if last is None:
        return condition.status == "True" or condition.type == ConditionType.ACCEPTED
    if condition.type == ConditionType.READY:
        return last.status != condition.status  # why it is not ready is the news of the condition that it repeats
    return (last.status, last.reason) != (condition.status, condition.reason)


def _replacements(material: Material) -> list[Notice]:
    notices = []
    if material.keyring_lost:
        notices.append(
            Notice(True, EventReason.KEYRING_LOST, "the salt keyring was missing or damaged: every tenant's salt rotates now")
        )
    if material.engine_keys_lost:
        note = "the engine key was missing or damaged: a new one is in place, requests fail until all pods have it"
        notices.append(Notice(True, EventReason.ENGINE_KEY_REPLACED, note))
    if material.pki.ca_replaced:
        note = "a new certificate authority is in place; certificates follow when all pods trust it"
        notices.append(Notice(False, EventReason.CERTIFICATE_AUTHORITY_REPLACED, note))
    notices += [
        Notice(True, EventReason.API_KEY_REPLACED, f"tenant {tenant} has a new generated API key: hand it out")
        for tenant in material.renewed_keys
    ]
    return notices


def _unknown(previous: TenantPolicyStatus, material: Material) -> list[Notice]:
    """One Event for the names that the status did not have yet."""
    told = (previous.rotation.unknown_tenants if previous.rotation else None) or ()
    new = [name for name in material.unknown_tenants if name not in told]
    if not new:
        return []
    note = (
        f"{ROTATE_ANNOTATION}.<tenant>: there is no tenant {', '.join(new)[:700]}, so nothing rotates: mend the annotation's name"
    )
    return [Notice(True, EventReason.ROTATION_TENANT_UNKNOWN, note)]


def _long_ids(record: RotationRecord) -> str:
    """A sentence about ids that are not recorded as they stand in the annotation; empty where there are none."""
    if not any(id_.startswith(LONG_ID_PREFIX) for id_ in record.ids.values()):
        return ""
    return f"; an id of more than {MAX_ID_LENGTH} characters is recorded as its digest: annotate with a shorter one"


def _phases(previous: TenantPolicyStatus, state: RotationState) -> list[Notice]:
    last = previous.rotation.phase if previous.rotation else RotationPhase.IDLE
    phase = state.record.phase
    if last is phase:
        return []
    if phase is RotationPhase.IDLE:
        return [Notice(False, EventReason.ROTATION_FINISHED, "nothing of the old salt generation is left")]
    if phase is RotationPhase.DISTRIBUTING:
        tenants = ", ".join(sorted(state.record.previous))
        return [Notice(False, EventReason.ROTATION_STARTED, f"new salts for {tenants[:700]}{_long_ids(state.record)}")]
    return [Notice(False, EventReason.ROTATION_ADVANCED, f"rotation is {phase}")]
