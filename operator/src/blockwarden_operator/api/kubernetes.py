"""Kubernetes' own types, as far as a TenantPolicy may use them.

They are spelled out instead of passed through: the schema stays structural, `kubectl explain` works, and a field that a later
Kubernetes adds cannot reach a pod before somebody has thought about it. Nothing here has defaults of its own: what is left
out is left to Kubernetes.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from .base import ATOMIC, ApiModel, ObjectName, Quantity, rule, rules

LabelKey = Annotated[str, Field(min_length=1, max_length=317)]
LabelValue = Annotated[str, Field(max_length=63)]
Labels = Annotated[dict[str, LabelValue], Field(max_length=32)]
Weight = Annotated[int, Field(ge=1, le=100)]


class LabelSelectorRequirement(ApiModel):
    """A condition on one label."""

    key: LabelKey
    """The label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label relates to `values`."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=32, json_schema_extra=ATOMIC)] | None = None
    """The values for In and NotIn."""


class LabelSelector(ApiModel):
    """Selects objects by label; all conditions must hold, and an empty selector selects everything."""

    match_labels: Labels | None = None
    """Labels that must have exactly these values."""
    match_expressions: Annotated[tuple[LabelSelectorRequirement, ...], Field(max_length=16, json_schema_extra=ATOMIC)] | None = (
        None
    )
    """Further conditions."""


class IPBlock(ApiModel):
    """A range of addresses."""

    cidr: Annotated[str, Field(max_length=43, json_schema_extra={"format": "cidr"})]
    """The range, such as 10.0.0.0/8 or fd00::/8."""
    excluded: (
        Annotated[
            tuple[Annotated[str, Field(max_length=43, json_schema_extra={"format": "cidr"})], ...],
            Field(max_length=16, json_schema_extra=ATOMIC),
        ]
        | None
    ) = Field(None, alias="except")
    """Ranges within `cidr` that are left out."""


class NetworkPolicyPeer(ApiModel):
    """Who may connect: pods by label, in this namespace or in selected ones, or a range of addresses."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
                "allowFrom: a peer is an ipBlock or selectors: set podSelector, namespaceSelector or both, or ipBlock alone",
            )
        )
    )

    pod_selector: LabelSelector | None = None
    """Pods by label; without `namespaceSelector` those of the TenantPolicy's own namespace."""
    namespace_selector: LabelSelector | None = None
    """Namespaces by label."""
    ip_block: IPBlock | None = None
    """A range of addresses; cannot be combined with selectors."""


Peers = Annotated[tuple[NetworkPolicyPeer, ...], Field(max_length=16, json_schema_extra=ATOMIC)]


_RESOURCE_NAME: Final = (
    "^(cpu|memory|ephemeral-storage|hugepages-[0-9]+[KMGT]i"
    "|[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$"
)
_RESOURCE_RULES: Final = rules(
    rule(
        " && ".join(
            f"(!has(self.{side}) || self.{side}.all(name, name.matches('{_RESOURCE_NAME}')))" for side in ("requests", "limits")
        ),
        "resources: a name is not that of a resource: "
        "use cpu, memory, ephemeral-storage, hugepages-<size>, or one with a prefix such as nvidia.com/gpu",
    ),
    rule(
        "!has(self.requests) || !has(self.limits) || self.requests.all(name, !(name in self.limits) || "
        "!isQuantity(string(self.requests[name])) || !isQuantity(string(self.limits[name])) || "
        "!quantity(string(self.requests[name])).isGreaterThan(quantity(string(self.limits[name]))))",
        "resources.requests: a request is above its limit: lower it, or raise resources.limits",
    ),
)


class Resources(ApiModel):
    """Compute resources of one pod's main container."""

    model_config = ConfigDict(json_schema_extra=_RESOURCE_RULES)

    requests: Annotated[dict[str, Quantity], Field(max_length=16)] | None = None
    """What the scheduler reserves, by resource name."""
    limits: Annotated[dict[str, Quantity], Field(max_length=16)] | None = None
    """What the container may use at most, by resource name; GPUs (`nvidia.com/gpu`) are asked for here."""


class Toleration(ApiModel):
    """Lets pods run on nodes with a taint."""

    key: Annotated[str, Field(max_length=317)] | None = None
    """The taint's key; empty with operator Exists means every taint."""
    operator: Literal["Exists", "Equal"] | None = None
    """How `value` is compared; Equal when left out."""
    value: LabelValue | None = None
    """The taint's value, for operator Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The effect to tolerate; all of them when left out."""
    toleration_seconds: Annotated[int, Field(ge=0)] | None = None
    """How long a NoExecute taint is tolerated, in seconds; for ever when left out."""


class NodeSelectorRequirement(ApiModel):
    """A condition on one node label or field."""

    key: LabelKey
    """The label, or the field's path."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """How the label relates to `values`."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=64, json_schema_extra=ATOMIC)] | None = None
    """The values; none for Exists and DoesNotExist, one integer for Gt and Lt."""


Requirements = Annotated[tuple[NodeSelectorRequirement, ...], Field(max_length=16, json_schema_extra=ATOMIC)]


class NodeSelectorTerm(ApiModel):
    """Conditions that must all hold for a node."""

    match_expressions: Requirements | None = None
    """Conditions on the node's labels."""
    match_fields: Requirements | None = None
    """Conditions on the node's fields."""


class NodeSelector(ApiModel):
    """Nodes that satisfy at least one term."""

    node_selector_terms: Annotated[tuple[NodeSelectorTerm, ...], Field(min_length=1, max_length=16, json_schema_extra=ATOMIC)]
    """The terms, of which one must hold."""


class PreferredNodes(ApiModel):
    """A preference for nodes."""

    weight: Weight
    """How much it counts, 1 to 100."""
    preference: NodeSelectorTerm
    """The nodes."""


class NodeAffinity(ApiModel):
    """Which nodes pods must or should run on."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    """Nodes that pods must run on."""
    preferred_during_scheduling_ignored_during_execution: (
        Annotated[tuple[PreferredNodes, ...], Field(max_length=16, json_schema_extra=ATOMIC)] | None
    ) = None
    """Nodes that pods should run on."""


class PodAffinityTerm(ApiModel):
    """Pods near which, or away from which, to run."""

    topology_key: LabelKey
    """The node label that says what is near."""
    label_selector: LabelSelector | None = None
    """The other pods."""
    namespace_selector: LabelSelector | None = None
    """Their namespaces; this one when left out."""


class PreferredPods(ApiModel):
    """A preference for the neighbourhood of pods."""

    weight: Weight
    """How much it counts, 1 to 100."""
    pod_affinity_term: PodAffinityTerm
    """The pods."""


class PodAffinity(ApiModel):
    """Neighbourhood of other pods, as a demand or a preference."""

    required_during_scheduling_ignored_during_execution: (
        Annotated[tuple[PodAffinityTerm, ...], Field(max_length=16, json_schema_extra=ATOMIC)] | None
    ) = None
    """What must hold."""
    preferred_during_scheduling_ignored_during_execution: (
        Annotated[tuple[PreferredPods, ...], Field(max_length=16, json_schema_extra=ATOMIC)] | None
    ) = None
    """What should hold."""


class Affinity(ApiModel):
    """Where pods run, by nodes and by neighbours."""

    node_affinity: NodeAffinity | None = None
    """By nodes."""
    pod_affinity: PodAffinity | None = None
    """Near these pods."""
    pod_anti_affinity: PodAffinity | None = None
    """Away from these pods."""


class TopologySpreadConstraint(ApiModel):
    """How evenly pods spread over zones or nodes."""

    max_skew: Annotated[int, Field(ge=1)]
    """The largest difference in the number of pods between two domains."""
    topology_key: LabelKey
    """The node label that makes the domains."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """What happens to a pod that would break the constraint."""
    label_selector: LabelSelector | None = None
    """The pods that count."""
    min_domains: Annotated[int, Field(ge=1)] | None = None
    """The number of domains below which the global minimum counts as zero."""
    match_label_keys: Annotated[tuple[LabelKey, ...], Field(max_length=8, json_schema_extra=ATOMIC)] | None = None
    """Labels of the pod itself whose values the counted pods must share."""


class LocalObjectRef(ApiModel):
    """An object in the TenantPolicy's namespace."""

    name: ObjectName
    """Its name."""
