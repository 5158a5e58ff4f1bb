"""The kinds of objects that the operator touches, and where the apiserver serves them. Pure: the client, the watches, the plan's
order and the permissions are all read off this one table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .render.names import GROUP, KIND, PLURAL, VERSION


@dataclass(frozen=True, slots=True)
class Kind:
    """Where the apiserver serves a kind."""

    kind: str
    plural: str
    group: str = ""
    version: str = "v1"


CHILD_KINDS: Final = (
    Kind("ServiceAccount", "serviceaccounts"),
    Kind("NetworkPolicy", "networkpolicies", "networking.k8s.io"),
    Kind("Secret", "secrets"),
    Kind("ConfigMap", "configmaps"),
    Kind("PersistentVolumeClaim", "persistentvolumeclaims"),
    Kind("Service", "services"),
    Kind("Job", "jobs", "batch"),
    Kind("Deployment", "deployments", "apps"),
)
"""The kinds of a policy's children in the order in which they are applied: nothing starts before what confines it exists, and
a keyring is stored before the documents that follow from it."""
APPLY_ORDER: Final = {kind.kind: index for index, kind in enumerate(CHILD_KINDS)}
CREATE_ONLY: Final = frozenset({"Job", "PersistentVolumeClaim"})
"""Kinds that Kubernetes does not let anybody change: made when missing, never applied again."""
TRIED_KINDS: Final = frozenset({"NetworkPolicy", "PersistentVolumeClaim", "Service", "Job", "Deployment"})
"""Kinds whose objects hold what a policy's author wrote, in fields that only the apiserver can judge."""
POLICY: Final = Kind(KIND, PLURAL, GROUP, VERSION)
POD: Final = Kind("Pod", "pods")
EVENT: Final = Kind("Event", "events", "events.k8s.io")
ALL_KINDS: Final = {kind.kind: kind for kind in (*CHILD_KINDS, POLICY, POD, EVENT)}
