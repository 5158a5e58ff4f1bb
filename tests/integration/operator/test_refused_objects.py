"""What the apiserver does not take although the TenantPolicy was: it is said, and nothing else stands still."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

pytestmark = pytest.mark.integration


GPU_WITHOUT_LIMIT = {"resources": {"requests": {"nvidia.com/gpu": 1}}}
REFUSED_SPECS = {
    "a GPU that has a request and no limit": (
        "engine",
        GPU_WITHOUT_LIMIT,
        "Deployment demo-engine",
        "spec.template.spec.containers[0].resources.limits",
    ),
    "a label that is none": (
        "gateway",
        {"allowFrom": [{"podSelector": {"matchLabels": {"!!": "x"}}}]},
        "NetworkPolicy demo-gateway",
        "podSelector.matchLabels",
    ),
}
"""Specs that the CRD takes: the object that follows from them and is not taken, and the field that the apiserver names."""


@pytest.mark.parametrize("case", REFUSED_SPECS.values(), ids=REFUSED_SPECS)
async def test_a_spec_whose_objects_are_refused_is_refused_as_a_whole(
    cluster: Any, served: Any, manifest: Any, case: tuple[str, dict[str, Any], str, str]
) -> None:
    part, change, named, field = case
    before = await cluster.versions()
    good = copy.deepcopy(manifest)
    manifest["spec"][part] |= change
    manifest["spec"]["tenants"] = manifest["spec"]["tenants"][:1]
    cluster.apply(manifest)
    await served.reconcile(2)
    served.restart()
    await served.reconcile()
    after = await cluster.versions()
    del before["TenantPolicy", "demo"], after["TenantPolicy", "demo"]
    assert after == before, "what ran goes on running, whole, also past a restart"
    policy = await cluster.policy()
    accepted = await cluster.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "ObjectRefused")
    assert f"spec.{part}: {named} is refused" in accepted["message"]
    assert field in accepted["message"]
    assert accepted["observedGeneration"] == policy["status"]["observedGeneration"] == policy["metadata"]["generation"]
    assert (await cluster.condition("Ready"))["status"] == "False"
    assert "ObjectRefused" in [event["reason"] for event in await cluster.events()]

    version = policy["metadata"]["resourceVersion"]
    await served.reconcile(2)
    assert (await cluster.policy())["metadata"]["resourceVersion"] == version
    cluster.apply(good)
    await served.reconcile(2)
    assert (await cluster.condition("Accepted"))["status"] == "True"


async def test_a_rotation_goes_on_under_a_spec_whose_deployment_is_refused(
    cluster: Any, served: Any, fleet: Any, manifest: Any
) -> None:
    manifest["spec"]["engine"] |= GPU_WITHOUT_LIMIT
    cluster.apply(manifest)
    cluster.kubectl("annotate", "tenantpolicy", "demo", "blockwarden.dev/rotate-salt=new")
    phases = []
    for _ in range(8):
        await served.reconcile()
        await fleet.refresh()
        phases.append((await cluster.policy())["status"]["rotation"]["phase"])
    assert list(dict.fromkeys(phases)) == ["Distributing", "Draining", "Retiring", "Idle"]


QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "none"},
    "spec": {"hard": {"count/deployments.apps": "0"}},
}


async def test_a_refusal_at_the_write_keeps_neither_deletes_nor_the_status(cluster: Any, served: Any, manifest: Any) -> None:
    """A quota forbids the repair of one Deployment of an accepted spec."""
    cluster.kubectl("create", "secret", "generic", "demo-key-gone", "--from-literal=api-key=x")
    secret, owned = cluster.get("secret", "demo-key-gone"), cluster.get("secret", "demo-key-acme")
    metadata = {"labels": owned["metadata"]["labels"], "ownerReferences": owned["metadata"]["ownerReferences"]}
    cluster.kubectl("patch", "secret", secret["metadata"]["name"], "--type=merge", "-p", json.dumps({"metadata": metadata}))
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(QUOTA))
    await cluster.until_quota_counts("none")
    cluster.kubectl("delete", "deployment", "demo-gateway", "--wait=true")
    cluster.kubectl("scale", "deployment", "demo-engine", "--replicas=3")
    await served.reconcile()
    accepted = await cluster.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "ObjectRefused")
    assert "Deployment demo-gateway is refused by the apiserver (Forbidden)" in accepted["message"]
    assert (await cluster.condition("GatewayReady"))["status"] == "False"
    assert ("Secret", "demo-key-gone") not in await cluster.children()
    assert cluster.get("deployment", "demo-engine")["spec"]["replicas"] == 1, "its neighbour is repaired"

    cluster.kubectl("delete", "resourcequota", "none")
    await served.reconcile(2)
    assert ("Deployment", "demo-gateway") in await cluster.children()
    assert (await cluster.condition("Accepted"))["status"] == "True"
