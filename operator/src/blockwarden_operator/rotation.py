"""Rotation of salts by annotation: a pure state machine over what is stored and what the pods report.

The state is the keyring and a `RotationRecord`, which live in one Secret (the record in an annotation: it holds no secret), so
that a phase and the keys that go with it change in one write. Killing the operator between any two writes therefore neither
loses nor repeats anything: the next plan starts from the same state and the same reports.

    Idle ──(a new id, or the keyring was lost)──► Distributing ──(every live gateway reports the new keyring)──► Draining
      ▲                                                                                                            │
      └──(every live engine reports: nothing old is left)── Retiring ◄──(nothing old is in flight, or the deadline)┘

`status.rotation` mirrors the record; nothing is decided from it except the generations of a lost keyring.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from blockwarden_core.document import Document
from blockwarden_core.identity import CANARY_TENANT
from blockwarden_core.keys import SaltKeyring
from blockwarden_core.policy import EnginePolicy
from blockwarden_core.report import EngineReport, GatewayReport

from .render.names import GROUP
from .salts import Entropy, new_salt_secret

ROTATE_ANNOTATION: Final = f"{GROUP}/rotate-salt"
RECORD_ANNOTATION: Final = f"{GROUP}/rotation"
EVERYONE: Final = ""
"""The key of the id that rotates every tenant."""
CANARY_GENERATION: Final = 2
"""Constant, and above 1 so that a retired canary token exists."""
MAX_ID_LENGTH: Final = 128
"""Longer ids are recorded as their digest: the record lies in an annotation and in the status, which have limits of their own."""
MAX_UNKNOWN: Final = 32
"""As many tenants that do not exist are reported: annotations may name any number."""
LONG_ID_PREFIX: Final = "sha256:"
DRAIN_SECONDS: Final = 600
"""How long requests of an old generation may take to finish before the engines end them."""


class RotationPhase(StrEnum):
    """Where a rotation is; see docs/protocols.md."""

    IDLE = "Idle"
    DISTRIBUTING = "Distributing"
    DRAINING = "Draining"
    RETIRING = "Retiring"


class RotationRecord(Document):
    """What must survive the operator: the ids already acted upon, the phase, and what the rotation replaces.

    `ids` maps EVERYONE or a tenant to the last id that was begun; only that one asks for nothing, so that an id which was used
    a year ago cannot silently keep a leaked salt in use. `previous` maps each rotating tenant to the generation that it
    leaves. `departed` maps tenants that are gone to their last generation: coming back, they go on from there.
    Times are Unix seconds.
    """

    phase: RotationPhase = RotationPhase.IDLE
    since: int = 0
    rotated_at: int | None = None
    forced: bool = False
    ids: dict[str, str] = Field(default_factory=dict)
    previous: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    departed: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RotationState:
    """The keyring and the record, as they are (or shall be) stored together."""

    keyring: SaltKeyring
    record: RotationRecord


@dataclass(frozen=True, slots=True)
class RotationInput:
    """What a rotation step depends on.

    Args:
        requested: the ids in the TenantPolicy's annotations, by EVERYONE or tenant.
        payers: for each tenant of the spec the tenant in its tokens (itself, or `shared`).
        stored: the state in the cluster; None when the keyring is missing or damaged.
        generations: the highest generations seen outside the keyring (status, engine policy); empty for a new policy.
        gateways, engines: the report of every live pod by UID, None where it gave none.
        engine_policy: the engine policy in the cluster, None where missing or damaged.
        now: Unix seconds.
    """

    requested: Mapping[str, str]
    payers: Mapping[str, str]
    stored: RotationState | None
    generations: Mapping[str, int]
    gateways: Mapping[str, GatewayReport | None]
    engines: Mapping[str, EngineReport | None]
    engine_policy: EnginePolicy | None
    now: int
    drain_seconds: int = field(default=DRAIN_SECONDS)


def requested_ids(annotations: Mapping[str, str]) -> dict[str, str]:
    """The rotation ids asked for: {EVERYONE or tenant: id}. An empty id asks for nothing, a long one is its digest."""
    found = {}
    for name, value in annotations.items():
        if value and name == ROTATE_ANNOTATION:
            found[EVERYONE] = recorded_id(value)
        elif value and name.startswith(ROTATE_ANNOTATION + "."):
            found[name.removeprefix(ROTATE_ANNOTATION + ".")] = recorded_id(value)
    return found


def unknown_tenants(requested: Iterable[str], payers: Mapping[str, str]) -> tuple[str, ...]:
    """Whom the annotations would rotate and the spec does not have, the first MAX_UNKNOWN by name: ids of theirs wait."""
    return tuple(sorted(set(requested) - {EVERYONE, *payers, *payers.values()})[:MAX_UNKNOWN])


def recorded_id(id_: str) -> str:
    """An id as it is recorded: itself, or the digest of one that is too long. What it returns is recorded as itself."""
    if len(id_) <= MAX_ID_LENGTH:
        return id_
    return LONG_ID_PREFIX + hashlib.sha256(id_.encode("utf-8", "surrogatepass")).hexdigest()


def plan_rotation(given: RotationInput, entropy: Entropy) -> RotationState:
    """The state to store next: the stored one, at most one phase further. Equal to the stored one when nothing is to do."""
    if given.stored is None or is_lost(given):
        return _begin_without_keyring(given, entropy)
    state = _follow_tenants(_forget_ids(given.stored, given), given)
    match state.record.phase:
        case RotationPhase.IDLE:
            return _begin_if_asked(state, given, entropy)
        case RotationPhase.DISTRIBUTING:
            done = not waiting_for_gateways(state.keyring, given.gateways)
            return _enter(state, RotationPhase.DRAINING, given.now) if done else state
        case RotationPhase.DRAINING:
            done = _drained(state, given)
            return _enter(state, RotationPhase.RETIRING, given.now) if done else state
        case RotationPhase.RETIRING:
            done = not waiting_for_engines(state, given.engine_policy, given.engines)
            return _finish(state, given.now) if done else state


def is_lost(given: RotationInput) -> bool:
    """Whether a policy that has run has no keyring any more, or an old one put back: then a generation would fall, and what
    engines and external caches hold of it could be asked for again."""
    if given.stored is None:
        return bool(given.generations)
    held = given.stored.keyring.generations
    return any(held[tenant] < seen for tenant, seen in given.generations.items() if tenant in held)


def served_generations(state: RotationState) -> dict[str, tuple[int, int]]:
    """For each token tenant (generation, floor) of the engine policy in this state."""
    served = {}
    for tenant, generation in state.keyring.generations.items():
        old = state.record.previous.get(tenant, generation)
        served[tenant] = {
            RotationPhase.DISTRIBUTING: (old, old),
            RotationPhase.DRAINING: (generation, old),
        }.get(state.record.phase, (generation, generation))
    return served


def waiting_for_gateways(keyring: SaltKeyring, gateways: Mapping[str, GatewayReport | None]) -> list[str]:
    """The UIDs of live gateway pods that do not report this keyring."""
    return sorted(
        uid
        for uid, report in gateways.items()
        if report is None
        or report.secret_id != keyring.current.id
        or any(report.generations.get(tenant) != generation for tenant, generation in keyring.generations.items())
    )


def waiting_for_engines(
    state: RotationState, policy: EnginePolicy | None, engines: Mapping[str, EngineReport | None]
) -> list[str]:
    """The UIDs of live engine pods that may still hold something of a retired generation.

    All of them, while the engine policy in the cluster does not yet have the risen floors.
    """
    floors = {share.name: share.floor for share in policy.tenants} if policy else {}
    rotating = {tenant: state.keyring.generations[tenant] for tenant in state.record.previous}
    if policy is None or any(floors.get(tenant, generation) < generation for tenant, generation in rotating.items()):
        return sorted(engines)
    return sorted(
        uid
        for uid, report in engines.items()
        if report is None
        or report.policy_version < policy.version
        or any(share.stale_blocks or share.stale_requests for share in report.tenants)
    )


def _drained(state: RotationState, given: RotationInput) -> bool:
    """Whether no gateway has a request of an old generation in flight, or the deadline has passed."""
    if given.now - state.record.since >= given.drain_seconds:
        return True
    if waiting_for_gateways(state.keyring, given.gateways):
        return False
    return not any(
        count
        for report in given.gateways.values()
        if report is not None
        for tenant in state.record.previous
        for generation, count in report.in_flight.get(tenant, {}).items()
        if int(generation) < state.keyring.generations[tenant]
    )


def _begin_if_asked(state: RotationState, given: RotationInput, entropy: Entropy) -> RotationState:
    """A new rotation for every id that was not yet begun; several at once become one rotation."""
    fresh = {who: id_ for who, id_ in given.requested.items() if state.record.ids.get(who) != id_}
    payers = set(given.payers.values())
    tenants = {given.payers.get(who, who) for who in fresh} & payers
    everyone = EVERYONE in fresh
    if everyone:
        tenants = payers
    ids = {**state.record.ids, **_ids_of_tenants(fresh, given)}
    if not tenants:
        return RotationState(state.keyring, state.record.model_copy(update={"ids": ids}))
    return _begin(state, tenants, ids, given.now, new_secret=everyone, entropy=entropy)


def _begin(
    state: RotationState, tenants: Iterable[str], ids: dict[str, str], now: int, *, new_secret: bool, entropy: Entropy
) -> RotationState:
    previous = {tenant: state.keyring.generations[tenant] for tenant in sorted(tenants)}
    risen = {tenant: generation + 1 for tenant, generation in previous.items()}
    secrets = (*state.keyring.secrets, new_salt_secret(entropy)) if new_secret else state.keyring.secrets
    keyring = SaltKeyring(secrets=secrets, generations={**state.keyring.generations, **risen})
    record = state.record.model_copy(
        update={
            "phase": RotationPhase.DISTRIBUTING,
            "since": now,
            "rotated_at": now,
            "forced": False,
            "ids": ids,
            "previous": previous,
        }
    )
    return RotationState(keyring, record)


def _begin_without_keyring(given: RotationInput, entropy: Entropy) -> RotationState:
    """The first keyring of a policy, or the forced rotation after its keyring was lost.

    Generations go on from the highest seen, so that nothing an engine still caches can be asked for again. Ids in the
    annotations count as served: a forced rotation rotates everyone, and a new policy has nothing to rotate.
    """
    payers = sorted(set(given.payers.values()))
    previous = {tenant: given.generations[tenant] for tenant in payers if tenant in given.generations}
    generations = {tenant: previous.get(tenant, 0) + 1 for tenant in payers}
    departed = {name: seen for name, seen in given.generations.items() if name not in generations and name != CANARY_TENANT}
    lost = bool(given.generations)
    record = RotationRecord(
        phase=RotationPhase.DISTRIBUTING if lost else RotationPhase.IDLE,
        since=given.now,
        rotated_at=given.now if lost else None,
        forced=lost,
        ids=_ids_of_tenants(given.requested, given),
        previous=previous,
        departed=departed,
    )
    keyring = SaltKeyring(secrets=(new_salt_secret(entropy),), generations={**generations, CANARY_TENANT: CANARY_GENERATION})
    return RotationState(keyring, record)


def _forget_ids(state: RotationState, given: RotationInput) -> RotationState:
    """The ids of tenants that are gone go too: tenants may come and go without end, and the record must not grow with them."""
    return RotationState(state.keyring, state.record.model_copy(update={"ids": _ids_of_tenants(state.record.ids, given)}))


def _ids_of_tenants(ids: Mapping[str, str], given: RotationInput) -> dict[str, str]:
    known = {EVERYONE, *given.payers, *given.payers.values()}
    return {who: recorded_id(id_) for who, id_ in ids.items() if who in known}


def _follow_tenants(state: RotationState, given: RotationInput) -> RotationState:
    """Tenants that came get a generation of their own, those that went leave the keyring and are remembered."""
    wanted = {*given.payers.values(), CANARY_TENANT}
    held = state.keyring.generations
    if wanted == set(held):
        return state
    departed = {**state.record.departed, **{name: held[name] for name in held if name not in wanted}}
    new = {name: departed.pop(name, 0) + 1 for name in sorted(wanted - set(held))}
    if CANARY_TENANT in new:
        new[CANARY_TENANT] = CANARY_GENERATION
    generations = {name: generation for name, generation in {**held, **new}.items() if name in wanted}
    previous = {name: generation for name, generation in state.record.previous.items() if name in wanted}
    keyring = SaltKeyring(secrets=state.keyring.secrets, generations=generations)
    return RotationState(keyring, state.record.model_copy(update={"departed": departed, "previous": previous}))


def _enter(state: RotationState, phase: RotationPhase, now: int) -> RotationState:
    return RotationState(state.keyring, state.record.model_copy(update={"phase": phase, "since": now}))


def _finish(state: RotationState, now: int) -> RotationState:
    """Idle again: the old secret is deleted."""
    keyring = SaltKeyring(secrets=(state.keyring.current,), generations=state.keyring.generations)
    record = state.record.model_copy(update={"phase": RotationPhase.IDLE, "since": now, "forced": False, "previous": {}})
    return RotationState(keyring, record)
