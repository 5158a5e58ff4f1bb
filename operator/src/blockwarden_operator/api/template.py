"""What a TenantPolicy may say about the pods of its gateways and engines: scheduling, bookkeeping, tighter security.

The list is closed because isolation rests on the rest of the pod: an extra container, volume, host namespace, service account
or capability is a way around the gateway.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import ConfigDict, Field

from .base import ATOMIC, ApiModel, ObjectName, list_map, rule, rules
from .kubernetes import Affinity, Labels, LocalObjectRef, Toleration, TopologySpreadConstraint

HARMLESS_ANNOTATIONS: Final = ("cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt")
Identity = Annotated[int, Field(ge=1, le=2**31 - 1)]


class PodSecurity(ApiModel):
    """Tightening of the pods' security context. Pods always run as non-root, with a read-only root file system, without
    capabilities or privilege escalation and under the runtime's default seccomp profile; no field here takes that back."""

    run_as_user: Identity | None = None
    """The user id; 65532 when left out, whatever the image says. Never 0."""
    run_as_group: Identity | None = None
    """The group id; 65532 when left out, whatever the image says. Never 0."""
    fs_group: Identity | None = None
    """The group that owns mounted volumes; 65532 when left out. Never 0."""
    supplemental_groups: Annotated[tuple[Identity, ...], Field(max_length=16, json_schema_extra=ATOMIC)] | None = None
    """Further group ids. Never 0."""


class PodTemplate(ApiModel):
    """Scheduling, labels and tighter security of the pods."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.labels) || self.labels.all(k, k != 'pod-template-hash' && "
                "!k.matches('^([a-z0-9.-]+[.])?(kubernetes[.]io|k8s[.]io|blockwarden[.]dev)/'))",
                "template.labels: keys under kubernetes.io, k8s.io and blockwarden.dev decide what Services and NetworkPolicies "
                "select: use keys of your own",
            ),
            rule(
                "!has(self.annotations) || self.annotations.all(k, !k.contains('/') || k in ["
                + ", ".join(f"'{key}'" for key in HARMLESS_ANNOTATIONS)
                + "])",
                "template.annotations: prefixed keys steer network plug-ins and injectors: use keys without a prefix, or "
                + " or ".join(HARMLESS_ANNOTATIONS),
            ),
        )
    )

    labels: Labels | None = None
    """Further labels of the pods. Keys under kubernetes.io, k8s.io and blockwarden.dev are refused."""
    annotations: Annotated[dict[str, Annotated[str, Field(max_length=1024)]], Field(max_length=16)] | None = None
    """Further annotations of the pods: keys without a prefix, and the two that keep autoscalers from evicting. Others steer
    network plug-ins and injectors, and a second network interface is outside every NetworkPolicy."""
    node_selector: Labels | None = None
    """Labels that a node must have."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16, json_schema_extra=ATOMIC)] | None = None
    """Taints of nodes that the pods accept."""
    affinity: Affinity | None = None
    """Nodes and neighbours that the pods want or avoid."""
    topology_spread_constraints: (
        Annotated[tuple[TopologySpreadConstraint, ...], Field(max_length=8, json_schema_extra=ATOMIC)] | None
    ) = None
    """How the pods spread over zones or nodes."""
    priority_class_name: ObjectName | None = None
    """The PriorityClass of the pods."""
    runtime_class_name: ObjectName | None = None
    """The RuntimeClass of the pods, such as a sandboxed one."""
    image_pull_secrets: Annotated[tuple[LocalObjectRef, ...], Field(max_length=8, json_schema_extra=list_map("name"))] | None = (
        None
    )
    """Secrets with registry credentials for the pods' images."""
    security_context: PodSecurity | None = None
    """Tightening of the pods' security context."""
