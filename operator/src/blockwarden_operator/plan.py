"""From what is seen to what shall be: one pure function, `plan_policy`. It reads no clock, draws no randomness of its own and
knows no client, so that every decision of the operator can be tested, and explained, without a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from pydantic import ValidationError

from .accepted import InForce, read_accepted, render_accepted
from .api import Condition, ConditionType, TenantPolicy, TenantPolicySpec, TenantPolicyStatus
from .api.conditions import AcceptedReason
from .checks import CheckInput, Refusal, check_objects, check_spec
from .conditions import (
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
from .drift import has_drifted, with_shape
from .errors import InvalidPolicy
from .material import Material, plan_material
from .observed import Observed, Pod
from .render.engine import render_engine, render_engine_deployment
from .render.gateway import render_gateway
from .render.names import Component, Manifest, Owner
from .render.network import render_network
from .render.shares import canary_blocks
from .render.weights import render_weights, weights_job
from .resources import APPLY_ORDER, CREATE_ONLY, TRIED_KINDS
from .rotation import RotationPhase
from .salts import Entropy
from .settings import Settings
from .status import Notice, plan_notices, plan_status

ROTATING_SECONDS: Final = 1.0
UNREADY_SECONDS: Final = 3.0
"""While pods run whose reports may change; anything else that changes comes as an event."""
REFUSED_SECONDS: Final = 10.0
"""What a refusal is about may be mended elsewhere: a Secret created, an object of the same name removed."""
STEADY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write, in this order, and when to look again.

    Args:
        apply: the manifests of all children, whether or not they differ from what is there; the copy of the spec that is in
            force with them is the last.
        trial: what the apiserver must be asked about first, because it has never taken this spec.
        delete: (kind, name) of children that are no longer wanted.
        status: the whole status.
        notices: Events to post.
        requeue_after: seconds.
    """

    apply: tuple[Manifest, ...] = field(repr=False)
    delete: tuple[tuple[str, str], ...]
    status: dict[str, Any]
    notices: tuple[Notice, ...]
    requeue_after: float
    trial: tuple[Manifest, ...] = field(default=(), repr=False)


def plan_policy(observed: Observed, settings: Settings, entropy: Entropy) -> Plan:
    """What the cluster should hold for this policy, and its status."""
    metadata = observed.policy["metadata"]
    owner = Owner(metadata["name"], metadata["namespace"], metadata["uid"])
    previous = read_status(observed.policy)
    force, refusal = plan_spec(observed, settings, owner)
    if force is None:
        return _plan_refused(observed, previous, refusal)
    material = plan_material(observed, force.spec, previous, owner, drain_seconds=settings.drain_seconds, entropy=entropy)
    wanted, kept = plan_children(observed, force, owner, settings, material)
    in_order = sorted(wanted, key=lambda manifest: (APPLY_ORDER[manifest["kind"]], manifest["metadata"]["name"]))
    # Last, so that a spec counts as accepted only once everything that follows from it was taken.
    in_order.append(render_accepted(owner, force, material.engine_keys))
    apply = tuple(with_shape(manifest) for manifest in in_order)
    verdicts = _verdicts(observed, force.spec, owner, material, refusal, apply)
    conditions = _conditions(observed, previous, verdicts, force.generation)
    status = plan_status(observed, force.spec, owner, material, conditions, drain_seconds=settings.drain_seconds)
    names = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in apply} | kept
    return Plan(
        apply=apply,
        delete=tuple(sorted(observed.children.keys() - names)),
        status=status.manifest(),
        notices=plan_notices(previous, conditions, material),
        requeue_after=_requeue_after(observed, material, conditions),
        trial=() if refusal is not None else _plan_trial(observed, force, owner, settings, apply),
    )


def plan_unstored(observed: Observed) -> Plan:
    """What to report when the apiserver did not even take the Secrets: the status must not be ahead of what they hold."""
    return _plan_refused(observed, read_status(observed.policy), check_objects(observed.refused))


def _plan_trial(
    observed: Observed, force: InForce, owner: Owner, settings: Settings, apply: Iterable[Manifest]
) -> tuple[Manifest, ...]:
    """The objects that a spec shapes, where it is not the accepted one; engines too that still wait for their weights."""
    if read_accepted(observed, owner) == force:
        return ()
    engine = with_shape(render_engine_deployment(force.spec, owner, default_image=settings.engine_image))
    others = [
        manifest
        for manifest in apply
        if manifest["kind"] in TRIED_KINDS
        and (manifest["kind"], manifest["metadata"]["name"]) != ("Deployment", owner.engine)
        and not (manifest["kind"] in CREATE_ONLY and observed.child(manifest["kind"], manifest["metadata"]["name"]))
    ]
    return (*others, engine)


def read_status(policy: Manifest) -> TenantPolicyStatus:
    """The status as it was last written; empty where it cannot be read, for it is only ever a report."""
    try:
        return TenantPolicyStatus.model_validate(policy.get("status") or {})
    except ValidationError:
        return TenantPolicyStatus()


def plan_spec(observed: Observed, settings: Settings, owner: Owner) -> tuple[InForce | None, Refusal | None]:
    """The spec in force, and why the present one is not it."""
    generation = observed.policy["metadata"]["generation"]
    try:
        spec = TenantPolicy.of({**observed.policy, "status": {}}).spec
    except InvalidPolicy as error:
        return read_accepted(observed, owner), Refusal(AcceptedReason.UNREADABLE, str(error))
    refusal = check_spec(
        CheckInput(
            spec=spec,
            referenced=observed.referenced,
            volume_claims=observed.volume_claims,
            foreign=observed.foreign,
            reserved_blocks=canary_blocks(spec),
            image_prefixes=settings.image_prefixes,
        )
    )
    refusal = refusal or check_objects(observed.refused)
    if refusal is not None:
        return read_accepted(observed, owner), refusal
    return InForce(spec, generation), None


def plan_children(
    observed: Observed, force: InForce, owner: Owner, settings: Settings, material: Material
) -> tuple[list[Manifest], set[tuple[str, str]]]:
    """All children, and the (kind, name) of those that stay as they are for now."""
    spec = force.spec
    kept = {("Secret", owner.generated_key(tenant)) for tenant in material.waiting_keys}
    wanted = [
        *render_network(spec, owner, operator=settings.operator, dns=settings.dns),
        *material.manifests(owner),
        *render_weights(spec, owner, default_image=settings.engine_image),
        *render_engine(owner),
        *render_gateway(spec, owner, default_image=settings.gateway_image),
    ]
    if _weights_verdict(observed, spec, owner) is None:
        wanted.append(render_engine_deployment(spec, owner, default_image=settings.engine_image))
    else:
        # Engines of the weights before go on serving until the new ones are there.
        kept.add(("Deployment", owner.engine))
    return wanted, kept


def _weights_verdict(observed: Observed, spec: TenantPolicySpec, owner: Owner) -> Verdict | None:
    job = weights_job(spec, owner)
    return None if job is None else check_weights(observed.child("Job", job))


def _verdicts(
    observed: Observed,
    spec: TenantPolicySpec,
    owner: Owner,
    material: Material,
    refusal: Refusal | None,
    apply: Iterable[Manifest],
) -> list[Verdict]:
    engines, gateways = _ready(observed, Component.ENGINE), _ready(observed, Component.GATEWAY)
    desired = {manifest["metadata"]["name"]: manifest for manifest in apply if manifest["kind"] == "Deployment"}

    def workload(kind: ConditionType, component: Component, replicas: int) -> Verdict:
        name = owner.engine if component is Component.ENGINE else owner.gateway
        live = observed.child("Deployment", name)
        drifted = live is not None and name in desired and has_drifted(desired[name], live)
        pods = [pod for pod in observed.pods if pod.component == component and pod.leaves_at is None]
        return check_workload(kind, live, pods, replicas=replicas, drifted=drifted)

    engine = _weights_verdict(observed, spec, owner)
    verdicts = [
        check_accepted(refusal),
        check_secrets(material.problems, material.rotation.record),
        engine or workload(ConditionType.ENGINE_READY, Component.ENGINE, spec.engine.replicas),
        workload(ConditionType.GATEWAY_READY, Component.GATEWAY, spec.gateway.replicas),
        check_network(engines, observed.probes),
        check_isolation(
            Enforcement(
                engines=engines,
                gateways=gateways,
                engine_reports=observed.engines,
                gateway_reports=observed.gateways,
                engine_version=material.engine_policy.version,
                gateway_version=material.gateway_policy.version,
            ),
            observed.now,
        ),
    ]
    return [*verdicts, check_ready(verdicts)]


def _ready(observed: Observed, component: Component) -> list[Pod]:
    return [pod for pod in observed.pods if pod.component == component and pod.ready]


def _conditions(
    observed: Observed, previous: TenantPolicyStatus, verdicts: list[Verdict], in_force: int
) -> tuple[Condition, ...]:
    """Accepted and Ready are about the spec as it stands, the others about the one in force."""
    present = observed.policy["metadata"]["generation"]
    about_present = (ConditionType.ACCEPTED, ConditionType.READY)
    generations = {kind: present if kind in about_present else in_force for kind in ConditionType}
    return plan_conditions(verdicts, previous.conditions, generations=generations, now=observed.now)


def _plan_refused(observed: Observed, previous: TenantPolicyStatus, refusal: Refusal | None) -> Plan:
    """Nothing was ever accepted: there is nothing to run, and nothing is touched."""
    accepted = check_accepted(refusal)
    generation = observed.policy["metadata"]["generation"]
    conditions = _conditions(observed, previous, [accepted, check_ready([accepted])], generation)
    status = previous.model_copy(update={"observed_generation": generation, "conditions": conditions})
    return Plan((), (), status.manifest(), plan_notices(previous, conditions, None), REFUSED_SECONDS)


def _requeue_after(observed: Observed, material: Material, conditions: Iterable[Condition]) -> float:
    """When time alone may change the plan."""
    if material.rotation.record.phase is not RotationPhase.IDLE:
        return ROTATING_SECONDS
    unready = any(condition.type == ConditionType.READY and condition.status != "True" for condition in conditions)
    if unready and (observed.gateways or observed.engines):
        return UNREADY_SECONDS
    return max(1.0, min(STEADY_SECONDS, (material.pki.due - observed.now) / timedelta(seconds=1)))
