"""What the operator may do, read off what it does. The chart's roles are compared with this list, rule by rule.

There is no `*`, no `escalate`, no pod creation and no access to objects of other kinds. Secrets cannot be narrowed by label in
RBAC, so the operator can read those of the namespaces that it serves: `watchNamespaces` of the chart narrows that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Rule:
    """One RBAC rule."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]


_READ: Final = ("get", "list", "watch")
_OWN: Final = (*_READ, "create", "patch", "delete")
"""Server-side apply is a patch, and creates what is missing."""

RULES: Final = (
    Rule("blockwarden.dev", ("tenantpolicies",), _READ),
    Rule("blockwarden.dev", ("tenantpolicies/status",), ("patch",)),
    # Owner references that block deletion need this where the admission plug-in OwnerReferencesPermissionEnforcement is on.
    Rule("blockwarden.dev", ("tenantpolicies/finalizers",), ("update",)),
    Rule("", ("configmaps", "persistentvolumeclaims", "secrets", "serviceaccounts", "services"), _OWN),
    Rule("apps", ("deployments",), _OWN),
    Rule("batch", ("jobs",), _OWN),
    Rule("networking.k8s.io", ("networkpolicies",), _OWN),
    Rule("", ("pods",), ("list", "watch")),
    Rule("events.k8s.io", ("events",), ("create",)),
)
