"""What one reconcile sees of the world: values only, no client. `observe` fills it, `plan` reads it.

Everything that a plan depends on is here, so that a plan can be computed, tested and explained without a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from blockwarden_core.report import EngineReport, GatewayReport

from .render.names import COMPONENT_LABEL, Manifest

TEMPLATE_LABEL: Final = "pod-template-hash"
"""Set by a Deployment's controller on its ReplicaSets and their pods; ends the ReplicaSet's name."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of the policy."""

    name: str
    uid: str
    ip: str
    component: str
    ready: bool
    finished: bool
    leaves_at: datetime | None
    trouble: str = ""
    """Why the pod does not run, in Kubernetes' word; empty while nothing is wrong."""

    def is_live(self, now: datetime) -> bool:
        """Whether the pod may still run code of ours: it has an address, has not ended, and its grace period is not over."""
        return bool(self.ip) and not self.finished and (self.leaves_at is None or now < self.leaves_at)


def read_pod(manifest: Manifest) -> Pod:
    """The pod in a manifest."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    conditions = {entry["type"]: entry["status"] for entry in status.get("conditions") or []}
    leaving = metadata.get("deletionTimestamp")
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        ip=status.get("podIP") or "",
        component=(metadata.get("labels") or {}).get(COMPONENT_LABEL, ""),
        ready=conditions.get("Ready") == "True" and leaving is None,
        finished=status.get("phase") in ("Succeeded", "Failed"),
        leaves_at=parse_time(leaving) if leaving else None,
        trouble=_trouble(status),
    )


def is_of_deployment(manifest: Manifest, deployment: str) -> bool:
    """Whether a pod is of this Deployment: its controller is a ReplicaSet of the name that only this Deployment gives.

    Labels alone say nothing: whoever copies a gateway's would make every phase wait for a pod that never answers. The name is
    compared and not looked up, since pods outlive a ReplicaSet that was deleted and are still to be waited for.
    """
    metadata = manifest["metadata"]
    digest = (metadata.get("labels") or {}).get(TEMPLATE_LABEL)
    return bool(digest) and any(
        reference.get("controller")
        and (reference.get("apiVersion"), reference.get("kind")) == ("apps/v1", "ReplicaSet")
        and reference.get("name") == f"{deployment}-{digest}"
        for reference in metadata.get("ownerReferences") or []
    )


def _trouble(status: Manifest) -> str:
    for entry in status.get("conditions") or []:
        if (entry["type"], entry["status"]) == ("PodScheduled", "False"):
            return str(entry.get("reason") or "Unschedulable")
    for container in status.get("containerStatuses") or []:
        waiting = ((container.get("state") or {}).get("waiting") or {}).get("reason", "")
        if container.get("restartCount") and not container.get("ready"):
            # The same word while it waits for its next try and while it is at it, or the status would flap.
            return "CrashLoopBackOff"
        if waiting not in ("", "ContainerCreating", "PodInitializing"):
            return str(waiting)
    return ""


@dataclass(frozen=True, slots=True)
class PortProbe:
    """Which ports of an engine pod opened to the operator, which may reach `control` only."""

    api_open: bool
    events_open: bool
    control_open: bool


@dataclass(frozen=True, slots=True)
class RefusedObject:
    """An object that the apiserver does not take: its reason and the fields it names, never a value."""

    kind: str
    name: str
    component: str
    reason: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything about one TenantPolicy.

    Args:
        policy: the TenantPolicy.
        children: objects that it owns, by (kind, name).
        referenced: Secrets that its spec names, by name; None for one that does not exist.
        volume_claims: PersistentVolumeClaims that its spec names and that exist.
        foreign: `Kind name` of objects with the name of one of ours and another owner.
        pods: its pods.
        gateways, engines: reports of live pods by UID, None where a pod gave none.
        probes: by engine pod UID; None when the operator cannot probe.
        refused: what the apiserver said of the plan before this one, by the objects that it does not take, in order.
        now: aware, whole seconds.
    """

    policy: Manifest
    children: Mapping[tuple[str, str], Manifest] = field(repr=False)
    now: datetime
    referenced: Mapping[str, Manifest | None] = field(default_factory=dict, repr=False)
    volume_claims: frozenset[str] = frozenset()
    foreign: tuple[str, ...] = ()
    pods: tuple[Pod, ...] = ()
    gateways: Mapping[str, GatewayReport | None] = field(default_factory=dict)
    engines: Mapping[str, EngineReport | None] = field(default_factory=dict)
    probes: Mapping[str, PortProbe] | None = None
    refused: tuple[RefusedObject, ...] = ()

    def child(self, kind: str, name: str) -> Manifest | None:
        return self.children.get((kind, name))

    def secrets(self) -> dict[str, Manifest]:
        return {name: manifest for (kind, name), manifest in self.children.items() if kind == "Secret"}


def parse_time(text: str) -> datetime:
    """A Kubernetes timestamp."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)
