"""The NetworkPolicies of DESIGN §7: everything is denied in both directions, and each line here says who may reach what.

Nothing but the gateways reaches an engine's API, nothing but the operator and monitoring reaches an internal port, and the pod
that holds prompts has no way out. Kubelet's probes come from the node, which NetworkPolicies do not filter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from blockwarden_core import layout
from blockwarden_operator.api import NetworkPolicyPeer, TenantPolicySpec
from blockwarden_operator.settings import PodSelection

from .gateway import public_port
from .names import Component, Manifest, Owner, labels, render_object, selector

HTTPS_PORT: Final = 443


def render_network(spec: TenantPolicySpec, owner: Owner, *, operator: PodSelection, dns: PodSelection) -> list[Manifest]:
    """All NetworkPolicies of a policy; the first denies everything to every pod of it."""
    policies = [
        _policy(owner, owner.default_deny, Component.POLICY, selector(owner), ingress=[], egress=[]),
        _policy(
            owner,
            owner.engine,
            Component.ENGINE,
            labels(owner, Component.ENGINE),
            ingress=_engine_ingress(spec, owner, operator),
            egress=[],
        ),
        _policy(
            owner,
            owner.gateway,
            Component.GATEWAY,
            labels(owner, Component.GATEWAY),
            ingress=_gateway_ingress(spec, operator),
            egress=[_dns(dns), _rule("to", [_pods(labels(owner, Component.ENGINE))], layout.ENGINE_API_PORT)],
        ),
    ]
    if spec.model.source.hugging_face is not None:
        # The hub and its mirrors have no fixed addresses; this pod sees no prompt and no secret but the hub's token.
        egress = [_dns(dns), _rule("to", [], HTTPS_PORT)]
        target = labels(owner, Component.WEIGHTS)
        policies.append(_policy(owner, owner.weights, Component.WEIGHTS, target, ingress=[], egress=egress))
    return policies


def _engine_ingress(spec: TenantPolicySpec, owner: Owner, operator: PodSelection) -> list[Manifest]:
    rules = [
        _rule("from", [_pods(labels(owner, Component.GATEWAY))], layout.ENGINE_API_PORT),
        _internal(spec, operator, layout.ENGINE_INTERNAL_PORT),
    ]
    events = spec.engine.kv_events
    if events.enabled and events.allow_from:
        rules.append(_rule("from", _peers(events.allow_from), layout.ENGINE_KV_EVENTS_PORT))
    return rules


def _gateway_ingress(spec: TenantPolicySpec, operator: PodSelection) -> list[Manifest]:
    return [
        _rule("from", _peers(spec.gateway.allow_from), public_port(spec)),
        _internal(spec, operator, layout.GATEWAY_INTERNAL_PORT),
    ]


def _internal(spec: TenantPolicySpec, operator: PodSelection, port: int) -> Manifest:
    return _rule("from", [_selected(operator), *_peers(spec.monitoring.allow_from)], port)


def _dns(dns: PodSelection) -> Manifest:
    """The DNS pods, on whatever port they listen: network plug-ins see the port behind the Service's, and it is rarely 53."""
    return {"to": [_selected(dns)]}


def _rule(direction: str, peers: Sequence[Manifest], port: int) -> Manifest:
    """One port for some peers; for everyone where there are none, so callers with a list that must close check it first."""
    ports: Manifest = {"ports": [{"port": port, "protocol": "TCP"}]}
    return {direction: list(peers), **ports} if peers else ports


def _peers(peers: Sequence[NetworkPolicyPeer]) -> list[Manifest]:
    return [peer.manifest() for peer in peers]


def _pods(match: Mapping[str, str]) -> Manifest:
    return {"podSelector": {"matchLabels": dict(match)}}


def _selected(pods: PodSelection) -> Manifest:
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": pods.namespace}},
        "podSelector": {"matchLabels": dict(pods.labels)},
    }


def _policy(
    owner: Owner,
    name: str,
    component: Component,
    target: Mapping[str, str],
    *,
    ingress: Sequence[Manifest],
    egress: Sequence[Manifest],
) -> Manifest:
    spec: dict[str, Any] = {
        "podSelector": {"matchLabels": dict(target)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": list(ingress),
        "egress": list(egress),
    }
    return render_object("NetworkPolicy", owner, name, component, {"spec": spec}, api_version="networking.k8s.io/v1")
