"""Which events make which policy due. A handler puts a key on the queue and nothing else: it never fails, waits or writes.

Only `on.event` is used: every other kind of kopf handler writes annotations or finalizers on what it watches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import kopf

from blockwarden_operator.queue import Key
from blockwarden_operator.render.names import FIELD_MANAGER, INSTANCE_LABEL, MANAGED_BY_LABEL, MANAGED_BY_SELECTOR
from blockwarden_operator.resources import CHILD_KINDS, POD, POLICY

Enqueue = Callable[[Key], None]


def policy_key(metadata: Mapping[str, Any]) -> Key:
    """The key of a TenantPolicy."""
    return str(metadata["namespace"]), str(metadata["name"])


def owner_key(metadata: Mapping[str, Any]) -> Key | None:
    """The key of the policy that an object of ours says it belongs to."""
    labels = metadata.get("labels") or {}
    if labels.get(MANAGED_BY_LABEL) != FIELD_MANAGER or not labels.get(INSTANCE_LABEL):
        return None
    return str(metadata["namespace"]), str(labels[INSTANCE_LABEL])


def register(registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, enqueue: Enqueue) -> None:
    """Watch TenantPolicies, their children and their pods. The apiserver selects by label: nobody else's Secrets pass by here."""

    async def on_policy(meta: kopf.Meta, **_: Any) -> None:
        enqueue(policy_key(meta))

    async def on_child(meta: kopf.Meta, **_: Any) -> None:
        if (key := owner_key(meta)) is not None:
            enqueue(key)

    kopf.on.event(POLICY.group, POLICY.version, POLICY.plural, registry=registry)(on_policy)
    for kind in (*CHILD_KINDS, POD):
        kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)(on_child)
        settings.watching.label_selectors[kind.group, kind.version, kind.plural] = MANAGED_BY_SELECTOR
