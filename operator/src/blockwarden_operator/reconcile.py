"""One reconcile: observe, plan, apply, status if different. The shell around `plan`; every write of the operator is made here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import groupby
from operator import itemgetter
from typing import Any

from .drift import adopt_foreign_fields, has_drifted
from .errors import ClusterError, Gone, Refused
from .internal import Inspector
from .kube import Kube
from .observe import observe_policy
from .observed import Observed, RefusedObject
from .plan import Plan, plan_policy, plan_unstored
from .queue import Key
from .render.names import COMPONENT_LABEL, FIELD_MANAGER, GROUP, KIND, VERSION, Manifest
from .resources import APPLY_ORDER, CREATE_ONLY
from .salts import Entropy
from .settings import Settings
from .status import Notice

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Reconciler:
    """Brings one TenantPolicy at a time to what its plan says.

    Stateless: killed between any two writes, the next reconcile goes on from what is in the cluster.
    """

    kube: Kube
    inspector: Inspector
    settings: Settings
    entropy: Entropy
    now: Callable[[], datetime]

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile one key; returns the seconds until time alone may change something, None when the policy is gone."""
        observed = await observe_policy(self.kube, self.inspector, key, now=self.now)
        if observed is None:
            return None
        plan = plan_policy(observed, self.settings, self.entropy)
        if refused := await self._try(plan.trial):
            # The spec as a whole is not taken into force: the last accepted one is kept, as after any other refusal.
            observed = replace(observed, refused=refused)
            plan = plan_policy(observed, self.settings, self.entropy)
        changed = await self.apply_plan(observed, plan)
        if changed:
            log.info("reconciled %s/%s: wrote %s", *key, ", ".join(changed))
        return plan.requeue_after

    async def apply_plan(self, observed: Observed, plan: Plan) -> list[str]:
        """Write what differs, in order; returns what was written. What the apiserver refuses ends up in the status."""
        written, refused = await self._apply_children(observed, plan)
        for kind, name in plan.delete:
            metadata = observed.children[kind, name]["metadata"]
            if metadata.get("deletionTimestamp") is None:
                await self.kube.delete(kind, metadata["namespace"], name, uid=metadata["uid"])
                written.append(f"{kind} {name} (deleted)")
        if refused:
            plan = self._plan_report(replace(observed, refused=(*observed.refused, *refused)), refused)
        if plan.status != (observed.policy.get("status") or {}):
            await self._apply_status(observed.policy, plan.status)
            written.append("status")
        await self._post(observed.policy, plan.notices)
        return written

    async def _try(self, manifests: Iterable[Manifest]) -> tuple[RefusedObject, ...]:
        """What the apiserver would not take. A webhook that knows no trials answers 400: it decides at the write."""
        refused = []
        for manifest in manifests:
            try:
                await self.kube.apply(manifest, trial=True)
            except Refused as error:
                if error.status != HTTPStatus.BAD_REQUEST:
                    refused.append(_refused_object(manifest, error))
        return tuple(refused)

    async def _apply_children(self, observed: Observed, plan: Plan) -> tuple[list[str], list[RefusedObject]]:
        """Write children; returns what was written and what the apiserver refused.

        One refused object does not keep others of its kind from their repair. Kinds that come later wait: they follow from what
        was refused, or it confines them.
        """
        written: list[str] = []
        refused: list[RefusedObject] = []
        for _, manifests in groupby(plan.apply, key=itemgetter("kind")):
            for manifest in manifests:
                try:
                    if await self._apply_child(manifest, observed.child(manifest["kind"], manifest["metadata"]["name"])):
                        written.append(f"{manifest['kind']} {manifest['metadata']['name']}")
                except Refused as error:
                    log.warning("%s", error)
                    refused.append(_refused_object(manifest, error))
            if refused:
                break
        return written, refused

    def _plan_report(self, observed: Observed, refused: Iterable[RefusedObject]) -> Plan:
        """The status and the Events after a write that was refused."""
        stored = all(APPLY_ORDER[entry.kind] > APPLY_ORDER["Secret"] for entry in refused)
        return plan_policy(observed, self.settings, self.entropy) if stored else plan_unstored(observed)

    async def _apply_child(self, manifest: Manifest, live: Manifest | None) -> bool:
        """Apply one child unless it is there as wanted; what strangers added to it is taken over first and so removed."""
        if live is not None and manifest["kind"] in CREATE_ONLY:
            return False
        adopted = adopt_foreign_fields(live) if live is not None else None
        if live is not None and adopted is None and not has_drifted(manifest, live):
            return False
        if live is not None and adopted is not None:
            await self.kube.set_managed_fields(live, adopted)
        await self.kube.apply(manifest)
        return True

    async def _apply_status(self, policy: Manifest, status: Mapping[str, Any]) -> None:
        try:
            await self.kube.apply_status(policy, status)
        except Gone:
            log.info("%s/%s was deleted meanwhile", policy["metadata"]["namespace"], policy["metadata"]["name"])

    async def _post(self, policy: Manifest, notices: Iterable[Notice]) -> None:
        """Post Events. They come once and after the status, which says the same: one that is lost is not worth a retry of all."""
        for notice in notices:
            try:
                await self.kube.create_event(render_event(policy, notice, self.now()))
            except ClusterError as error:
                log.warning("could not post Event %s: %s", notice.reason, error)


def _refused_object(manifest: Manifest, error: Refused) -> RefusedObject:
    metadata = manifest["metadata"]
    component = metadata["labels"][COMPONENT_LABEL]
    return RefusedObject(manifest["kind"], metadata["name"], component, error.reason, error.fields)


def render_event(policy: Manifest, notice: Notice, now: datetime) -> Manifest:
    """A Kubernetes Event about a TenantPolicy. The apiserver completes its name: it is posted once, on a transition."""
    metadata = policy["metadata"]
    stamp = now.astimezone(UTC)
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name']}-", "namespace": metadata["namespace"]},
        "eventTime": stamp.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": f"{GROUP}/{FIELD_MANAGER}",
        "reportingInstance": FIELD_MANAGER,
        "action": "Reconcile",
        "reason": notice.reason,
        "type": "Warning" if notice.warning else "Normal",
        "note": notice.note[:1000],
        "regarding": {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
    }
