"""Names, labels and metadata of everything that belongs to one TenantPolicy: said once, so that no two renderers disagree.

docs/protocols.md holds the table of objects. Metadata is built from scratch: nothing is copied from the TenantPolicy, whose
annotations carry other tools' state.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

Manifest = dict[str, Any]

GROUP: Final = "blockwarden.dev"
VERSION: Final = "v1alpha1"
KIND: Final = "TenantPolicy"
PLURAL: Final = "tenantpolicies"
FIELD_MANAGER: Final = "blockwarden-operator"

NAME_LABEL: Final = "app.kubernetes.io/name"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY_SELECTOR: Final = f"{MANAGED_BY_LABEL}={FIELD_MANAGER}"

PUBLIC_PORT_NAME: Final = "public"
INTERNAL_PORT_NAME: Final = "internal"
API_PORT_NAME: Final = "api"


class Component(StrEnum):
    """What a part of the deployment is for; the label by which Services and NetworkPolicies select."""

    ENGINE = "engine"
    GATEWAY = "gateway"
    WEIGHTS = "weights"
    POLICY = "policy"


@dataclass(frozen=True, slots=True)
class Owner:
    """The TenantPolicy that owns the objects, and the names of those objects."""

    name: str
    namespace: str
    uid: str

    @property
    def salt_keyring(self) -> str:
        return f"{self.name}-salt-keyring"

    @property
    def engine_key(self) -> str:
        return f"{self.name}-engine-key"

    @property
    def api_keys(self) -> str:
        return f"{self.name}-api-keys"

    def generated_key(self, tenant: str) -> str:
        """The Secret with the API key that is generated for a tenant that brings none."""
        return f"{self.name}-key-{tenant}"

    @property
    def ca(self) -> str:
        return f"{self.name}-ca"

    @property
    def gateway_client_tls(self) -> str:
        return f"{self.name}-gateway-client-tls"

    @property
    def gateway_internal_tls(self) -> str:
        return f"{self.name}-gateway-internal-tls"

    @property
    def engine_tls(self) -> str:
        return f"{self.name}-engine-tls"

    @property
    def gateway(self) -> str:
        """Deployment, Service, ServiceAccount, ConfigMap and NetworkPolicy of the gateways."""
        return f"{self.name}-gateway"

    @property
    def engine(self) -> str:
        """Deployment, Service, ServiceAccount, ConfigMap and NetworkPolicy of the engines."""
        return f"{self.name}-engine"

    @property
    def weights(self) -> str:
        """PersistentVolumeClaim, download Job (with a suffix) and NetworkPolicy of the weights."""
        return f"{self.name}-weights"

    @property
    def accepted(self) -> str:
        """ConfigMap with the last accepted spec."""
        return f"{self.name}-accepted"

    @property
    def default_deny(self) -> str:
        return f"{self.name}-default-deny"

    def server_name(self, component: Component) -> str:
        """The DNS name of a component's Service, and the name in its certificates; it survives restarts, re-scheduling and
        renewal."""
        return f"{self.name}-{component}.{self.namespace}.svc"


def labels(owner: Owner, component: Component) -> dict[str, str]:
    """The labels of an object or a pod."""
    return {**selector(owner), COMPONENT_LABEL: component.value}


def selector(owner: Owner) -> dict[str, str]:
    """The labels that every object and pod of the policy carries."""
    return {NAME_LABEL: "blockwarden", INSTANCE_LABEL: owner.name, MANAGED_BY_LABEL: FIELD_MANAGER}


def render_object(
    kind: str, owner: Owner, name: str, component: Component, body: Manifest, *, api_version: str = "v1"
) -> Manifest:
    """An object owned by the policy: it goes when the policy goes, by garbage collection and without a finalizer."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": labels(owner, component),
            "ownerReferences": [
                {
                    "apiVersion": f"{GROUP}/{VERSION}",
                    "kind": KIND,
                    "name": owner.name,
                    "uid": owner.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        **body,
    }


def short_digest(*parts: str) -> str:
    """Ten hexadecimal digits that change when a part does; for names of immutable objects."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]
