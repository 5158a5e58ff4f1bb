"""The gateways: Deployment, Service, ServiceAccount, ConfigMap."""

from __future__ import annotations

from posixpath import dirname
from typing import Final

from blockwarden_core import layout
from blockwarden_core.policy import GatewayPolicy
from blockwarden_operator.api import TenantPolicySpec

from .names import INTERNAL_PORT_NAME, PUBLIC_PORT_NAME, Component, Manifest, Owner, render_object
from .names import labels as component_labels
from .pods import CONTAINER_SECURITY, TMP, config_volume, identity_env, mount, probe, render_pod, secret_volume

POLICY_FILE: Final = layout.GATEWAY_POLICY.removeprefix("policy/")
GRACE_SECONDS: Final = 60
"""Longer than a gateway's own drain: it lets streams end before it does."""


def public_port(spec: TenantPolicySpec) -> int:
    """The port that clients use."""
    return layout.GATEWAY_PUBLIC_TLS_PORT if spec.gateway.tls else layout.GATEWAY_PUBLIC_PORT


def endpoint(spec: TenantPolicySpec, owner: Owner) -> str:
    """The base URL of the API within the cluster."""
    scheme = "https" if spec.gateway.tls else "http"
    return f"{scheme}://{owner.server_name(Component.GATEWAY)}:{public_port(spec)}/v1"


def render_gateway(spec: TenantPolicySpec, owner: Owner, *, default_image: str) -> list[Manifest]:
    """The objects that run the gateways, save what they mount."""
    account = {"automountServiceAccountToken": False}
    service = render_object("Service", owner, owner.gateway, Component.GATEWAY, {"spec": _service(spec, owner)})
    if spec.gateway.service.annotations:
        service["metadata"]["annotations"] = dict(spec.gateway.service.annotations)
    return [
        render_object("ServiceAccount", owner, owner.gateway, Component.GATEWAY, account),
        service,
        render_object(
            "Deployment",
            owner,
            owner.gateway,
            Component.GATEWAY,
            {"spec": _deployment(spec, owner, default_image)},
            api_version="apps/v1",
        ),
    ]


def render_gateway_config(owner: Owner, policy: GatewayPolicy) -> Manifest:
    """The ConfigMap with what the gateways enforce."""
    return render_object("ConfigMap", owner, owner.gateway, Component.GATEWAY, {"data": {POLICY_FILE: policy.text()}})


def _service(spec: TenantPolicySpec, owner: Owner) -> Manifest:
    port = {
        "name": PUBLIC_PORT_NAME,
        "port": public_port(spec),
        "targetPort": PUBLIC_PORT_NAME,
        "protocol": "TCP",
    }
    return {
        "type": spec.gateway.service.type,
        "selector": component_labels(owner, Component.GATEWAY),
        "ports": [port],
    }


def _deployment(spec: TenantPolicySpec, owner: Owner, default_image: str) -> Manifest:
    return {
        "replicas": spec.gateway.replicas,
        "revisionHistoryLimit": 3,
        # A gateway is cheap and must never be missing: the new pod is there before the old one goes.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "selector": {"matchLabels": component_labels(owner, Component.GATEWAY)},
        "template": render_pod(
            owner,
            Component.GATEWAY,
            spec.gateway.template,
            {
                "serviceAccountName": owner.gateway,
                "terminationGracePeriodSeconds": GRACE_SECONDS,
                "containers": [_container(spec, owner, default_image)],
                "volumes": _volumes(spec, owner),
            },
        ),
    }


def _container(spec: TenantPolicySpec, owner: Owner, default_image: str) -> Manifest:
    mounts = [
        mount("policy", dirname(layout.GATEWAY_POLICY)),
        mount("salt", dirname(layout.SALT_KEYRING)),
        mount("engine-key", dirname(layout.ENGINE_KEYS)),
        mount("api-keys", dirname(layout.API_KEYS)),
        mount("client-tls", layout.CLIENT_TLS),
        mount("internal-tls", layout.INTERNAL_TLS),
        *([mount("public-tls", layout.PUBLIC_TLS)] if spec.gateway.tls else []),
        {"name": "tmp", "mountPath": TMP},
    ]
    return {
        "name": "gateway",
        "image": spec.gateway.image or default_image,
        "command": ["python3", "-m", "blockwarden_gateway"],
        "env": [*identity_env(owner), {"name": "HOME", "value": TMP}],
        "ports": [
            {"name": PUBLIC_PORT_NAME, "containerPort": public_port(spec), "protocol": "TCP"},
            {"name": INTERNAL_PORT_NAME, "containerPort": layout.GATEWAY_INTERNAL_PORT, "protocol": "TCP"},
        ],
        "resources": spec.gateway.resources.manifest() if spec.gateway.resources else {},
        "securityContext": CONTAINER_SECURITY,
        "startupProbe": probe(layout.LIVEZ_PATH, period=2, failures=60),
        "livenessProbe": probe(layout.LIVEZ_PATH, period=10, failures=6),
        "readinessProbe": probe(layout.READYZ_PATH, period=2, failures=3),
        "volumeMounts": mounts,
    }


def _volumes(spec: TenantPolicySpec, owner: Owner) -> list[Manifest]:
    volumes = [
        config_volume("policy", owner.gateway),
        secret_volume("salt", owner.salt_keyring),
        secret_volume("engine-key", owner.engine_key),
        secret_volume("api-keys", owner.api_keys),
        secret_volume("client-tls", owner.gateway_client_tls),
        secret_volume("internal-tls", owner.gateway_internal_tls),
    ]
    if spec.gateway.tls:
        volumes.append(secret_volume("public-tls", spec.gateway.tls.secret_name, layout.TLS_CERT, layout.TLS_KEY))
    return [*volumes, {"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}}]
