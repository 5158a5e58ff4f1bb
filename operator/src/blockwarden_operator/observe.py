"""Reads everything that a plan depends on: the only place that decides what is looked at. No decision is taken here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime

from .accepted import read_accepted
from .api import TenantPolicy, TenantPolicySpec
from .checks import secret_references
from .errors import InvalidPolicy, KeyMaterialError
from .internal import Inspector
from .kube import Kube
from .observed import Observed, Pod, is_of_deployment, read_pod
from .queue import Key
from .render.names import COMPONENT_LABEL, INSTANCE_LABEL, MANAGED_BY_SELECTOR, Component, Manifest, Owner
from .render.weights import weights_job
from .resources import CHILD_KINDS
from .salts import secret_data

Ref = tuple[str, str]


async def observe_policy(kube: Kube, inspector: Inspector, key: Key, *, now: Callable[[], datetime]) -> Observed | None:
    """What there is of a policy; None when it is gone or going: then garbage collection does the rest."""
    namespace, name = key
    policy = await kube.get("TenantPolicy", namespace, name)
    if policy is None or policy["metadata"].get("deletionTimestamp"):
        return None
    owner = Owner(name, namespace, policy["metadata"]["uid"])
    specs = _specs(policy, owner)
    children, foreign = await _observe_children(kube, owner, specs)
    # The last accepted spec is among the children, and what it refers to must be read as well.
    partial = Observed(policy=policy, children=children, now=now())
    accepted = read_accepted(partial, owner)
    specs = [*specs, *([accepted.spec] if accepted else [])]
    referenced, claims, pods = await asyncio.gather(
        _observe_referenced(kube, namespace, specs), _observe_claims(kube, namespace, specs), _observe_pods(kube, owner)
    )
    moment = now()
    live = [pod for pod in pods if pod.is_live(moment)]
    engines = tuple(pod for pod in live if pod.component == Component.ENGINE)
    gateways = tuple(pod for pod in live if pod.component == Component.GATEWAY)
    ca = _authority(children, owner)
    gateway_reports, engine_reports, probes = await asyncio.gather(
        inspector.observe_gateways(gateways, ca=ca, server_name=owner.server_name(Component.GATEWAY)),
        inspector.observe_engines(engines, ca=ca, server_name=owner.server_name(Component.ENGINE)),
        inspector.observe_ports(tuple(pod for pod in engines if pod.ready)),
    )
    return Observed(
        policy=policy,
        children=children,
        now=moment.replace(microsecond=0),
        referenced=referenced,
        volume_claims=claims,
        foreign=foreign,
        pods=tuple(pods),
        gateways=gateway_reports,
        engines=engine_reports,
        probes=probes,
    )


def child_names(spec: TenantPolicySpec, owner: Owner) -> list[Ref]:
    """(kind, name) of every object that a spec may make: where another's object must not be overwritten."""
    job = weights_job(spec, owner)
    secrets = [
        owner.salt_keyring,
        owner.engine_key,
        owner.api_keys,
        owner.ca,
        owner.gateway_client_tls,
        owner.gateway_internal_tls,
        owner.engine_tls,
        *(owner.generated_key(tenant.name) for tenant in spec.tenants if not tenant.api_keys),
    ]
    both = (owner.gateway, owner.engine)
    return [
        *(("Secret", name) for name in secrets),
        *((kind, name) for kind in ("ServiceAccount", "Service", "Deployment", "ConfigMap", "NetworkPolicy") for name in both),
        ("ConfigMap", owner.accepted),
        ("NetworkPolicy", owner.default_deny),
        *([("Job", job), ("PersistentVolumeClaim", owner.weights), ("NetworkPolicy", owner.weights)] if job else []),
    ]


def is_owned(manifest: Manifest, owner: Owner) -> bool:
    """Whether the object belongs to exactly this TenantPolicy, not to a namesake before it."""
    references = manifest["metadata"].get("ownerReferences") or []
    return any(reference.get("controller") and reference.get("uid") == owner.uid for reference in references)


def _specs(policy: Manifest, owner: Owner) -> list[TenantPolicySpec]:
    try:
        return [TenantPolicy.of({**policy, "status": {}}).spec]
    except InvalidPolicy:
        return []


async def _observe_children(
    kube: Kube, owner: Owner, specs: Iterable[TenantPolicySpec]
) -> tuple[dict[Ref, Manifest], tuple[str, ...]]:
    """What the policy owns, and whose objects are in its way. Objects that lost their labels are asked for by name."""
    selector = f"{MANAGED_BY_SELECTOR},{INSTANCE_LABEL}={owner.name}"
    lists = await asyncio.gather(*(kube.select(kind.kind, owner.namespace, selector=selector) for kind in CHILD_KINDS))
    children = {
        (kind.kind, manifest["metadata"]["name"]): manifest
        for kind, listed in zip(CHILD_KINDS, lists, strict=True)
        for manifest in listed
        if is_owned(manifest, owner)
    }
    missing = sorted({ref for spec in specs for ref in child_names(spec, owner)} - children.keys())
    found = await asyncio.gather(*(kube.get(kind, owner.namespace, name) for kind, name in missing))
    foreign = []
    for (kind, name), manifest in zip(missing, found, strict=True):
        if manifest is None:
            continue
        if is_owned(manifest, owner):
            children[kind, name] = manifest
        else:
            foreign.append(f"{kind} {name}")
    return children, tuple(foreign)


async def _observe_referenced(kube: Kube, namespace: str, specs: Iterable[TenantPolicySpec]) -> dict[str, Manifest | None]:
    names = sorted({reference.name for spec in specs for reference in secret_references(spec)})
    return dict(zip(names, await asyncio.gather(*(kube.get("Secret", namespace, name) for name in names)), strict=True))


async def _observe_claims(kube: Kube, namespace: str, specs: Iterable[TenantPolicySpec]) -> frozenset[str]:
    sources = [spec.model.source.persistent_volume_claim for spec in specs]
    names = sorted({source.name for source in sources if source is not None})
    found = await asyncio.gather(*(kube.get("PersistentVolumeClaim", namespace, name) for name in names))
    return frozenset(name for name, manifest in zip(names, found, strict=True) if manifest is not None)


async def _observe_pods(kube: Kube, owner: Owner) -> list[Pod]:
    """The pods of the policy's two Deployments, whatever else carries their labels."""
    deployments = {Component.ENGINE.value: owner.engine, Component.GATEWAY.value: owner.gateway}
    selector = f"{MANAGED_BY_SELECTOR},{INSTANCE_LABEL}={owner.name},{COMPONENT_LABEL} in ({','.join(deployments)})"
    found = await kube.select("Pod", owner.namespace, selector=selector)
    return [
        read_pod(manifest)
        for manifest in found
        if is_of_deployment(manifest, deployments[manifest["metadata"]["labels"][COMPONENT_LABEL]])
    ]


def _authority(children: dict[Ref, Manifest], owner: Owner) -> bytes | None:
    try:
        return secret_data(children.get(("Secret", owner.ca)), "ca.crt")
    except KeyMaterialError:
        return None
