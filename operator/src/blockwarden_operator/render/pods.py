"""What every pod of a policy has in common: it is nobody, it can do nothing, and it sees only the files it is given."""

from __future__ import annotations

from typing import Any, Final

from blockwarden_core.layout import POD_UID_ENV, POLICY_UID_ENV, ROOT
from blockwarden_operator.api import PodTemplate

from .names import Component, Manifest, Owner, labels

USER: Final = 65532
CONTAINER_SECURITY: Final[Manifest] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
SECRET_MODE: Final = 0o440
TMP: Final = "/tmp"  # noqa: S108 - a volume of the pod's own


def render_pod(owner: Owner, component: Component, template: PodTemplate, spec: Manifest) -> Manifest:
    """A pod template: what the policy's template may say, beneath what it may not change."""
    allowed = template.manifest()
    tightened = allowed.pop("securityContext", {})
    metadata: Manifest = {"labels": {**allowed.pop("labels", {}), **labels(owner, component)}}
    if annotations := allowed.pop("annotations", {}):
        metadata["annotations"] = annotations
    return {
        "metadata": metadata,
        "spec": {
            **allowed,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                **tightened,
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **spec,
        },
    }


def identity_env(owner: Owner) -> list[Manifest]:
    """How a process learns which pod of which policy it is."""
    return [
        {"name": POD_UID_ENV, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}},
        {"name": POLICY_UID_ENV, "value": owner.uid},
    ]


def secret_volume(name: str, secret: str, *files: str) -> Manifest:
    """A volume with a Secret's files (all of them where none is named), readable by the pod's group only."""
    source: dict[str, Any] = {"secretName": secret, "defaultMode": SECRET_MODE}
    if files:
        source["items"] = [{"key": file, "path": file} for file in files]
    return {"name": name, "secret": source}


def config_volume(name: str, config_map: str) -> Manifest:
    """A volume with a ConfigMap's files."""
    return {"name": name, "configMap": {"name": config_map, "defaultMode": SECRET_MODE}}


def mount(volume: str, directory: str) -> Manifest:
    """A read-only mount below the root of mounted documents. A directory, never a subPath: those do not refresh."""
    return {"name": volume, "mountPath": f"{ROOT}/{directory}", "readOnly": True}


def probe(path: str, *, period: int, failures: int, timeout: int = 5) -> Manifest:
    """A probe of the internal port, which speaks TLS; kubelet does not check the certificate."""
    return {
        "httpGet": {"path": path, "port": "internal", "scheme": "HTTPS"},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }
