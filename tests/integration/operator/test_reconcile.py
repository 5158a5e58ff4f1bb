"""What one reconcile does to a real apiserver, and what the next one leaves alone."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytestmark = pytest.mark.integration
HOST_NETWORK = {"template": {"spec": {"hostNetwork": True}}}


async def test_a_policy_becomes_ready_and_a_second_reconcile_writes_nothing(cluster: Any, served: Any) -> None:
    before = await cluster.versions()
    events = len(await cluster.events())
    await served.reconcile(3)
    served.restart()
    await served.reconcile(2)
    assert served.reconciler.writes == []
    assert await cluster.versions() == before
    assert len(await cluster.events()) == events
    kinds = {kind for kind, _ in before}
    assert kinds >= {"Secret", "ConfigMap", "Deployment", "Service", "ServiceAccount", "NetworkPolicy", "TenantPolicy"}


async def test_every_deleted_child_comes_back(cluster: Any, served: Any) -> None:
    before = await cluster.children()
    for kind, name in before:
        cluster.kubectl("delete", kind, name, "--wait=false")
        await served.reconcile(2)
    after = await cluster.children()
    assert after.keys() == before.keys()
    assert all(after[ref]["metadata"]["uid"] != before[ref]["metadata"]["uid"] for ref in before)


@pytest.mark.parametrize(
    ("edit", "path", "value"),
    [
        (("NetworkPolicy", "demo-engine", {"spec": {"ingress": [{}]}}), ("spec", "ingress"), None),
        (("NetworkPolicy", "demo-default-deny", {"spec": {"egress": [{}]}}), ("spec", "egress"), None),
        (("Deployment", "demo-engine", {"spec": HOST_NETWORK}), ("spec", "template", "spec"), None),
        (("Deployment", "demo-gateway", {"spec": {"replicas": 7}}), ("spec", "replicas"), 1),
        (("Service", "demo-engine", {"spec": {"publishNotReadyAddresses": True}}), ("spec", "publishNotReadyAddresses"), None),
        (("ServiceAccount", "demo-engine", {"automountServiceAccountToken": True}), ("automountServiceAccountToken",), False),
        (("ConfigMap", "demo-engine", {"data": {"engine.json": "{}", "more": "x"}}), ("data",), None),
        (("Secret", "demo-api-keys", {"data": {"digests.json": "e30="}}), ("data",), None),
    ],
)
async def test_an_edited_child_is_mended(
    cluster: Any, served: Any, edit: tuple[str, str, dict[str, Any]], path: tuple[str, ...], value: Any
) -> None:
    kind, name, patch = edit

    def at(manifest: Any) -> Any:
        for step in path:
            manifest = (manifest or {}).get(step)
        return manifest

    before = at(cluster.get(kind, name))
    cluster.kubectl("patch", kind, name, "--type=merge", "-p", json.dumps(patch))
    edited = at(cluster.get(kind, name))
    assert edited != before, "the edit did not take: the test would prove nothing"
    await served.reconcile()
    mended = at(cluster.get(kind, name))
    if kind == "ConfigMap":  # sealed anew under a version that rises
        assert mended.keys() == before.keys()
        assert mended["engine.json"] != "{}"
    else:
        assert mended == before
    assert value is None or mended == value
    served.reconciler.writes.clear()
    await served.reconcile(2)
    # The status may follow the Deployment, whose pods come and go with the edit.
    assert set(served.reconciler.writes) <= {"status"}


async def test_a_container_that_somebody_adds_goes_again(cluster: Any, served: Any) -> None:
    extra = [{"op": "add", "path": "/spec/template/spec/containers/-", "value": {"name": "spy", "image": "spy:1"}}]
    cluster.kubectl("patch", "deployment", "demo-engine", "--type=json", "-p", json.dumps(extra))
    assert len(cluster.get("deployment", "demo-engine")["spec"]["template"]["spec"]["containers"]) == 2
    await served.reconcile()
    containers = cluster.get("deployment", "demo-engine")["spec"]["template"]["spec"]["containers"]
    assert [container["name"] for container in containers] == ["engine"]


async def test_a_rollout_restart_is_left_to_whoever_asked_for_it(cluster: Any, served: Any) -> None:
    cluster.kubectl("rollout", "restart", "deployment/demo-gateway")
    await served.reconcile(2)
    annotations = cluster.get("deployment", "demo-gateway")["spec"]["template"]["metadata"].get("annotations", {})
    assert "kubectl.kubernetes.io/restartedAt" in annotations


async def test_any_other_annotation_of_pods_goes_again(cluster: Any, served: Any) -> None:
    """A second network interface is outside every NetworkPolicy; a restart asked for in the same edit stays."""
    restart, network = "kubectl.kubernetes.io/restartedAt", "k8s.v1.cni.cncf.io/networks"
    patch = {"spec": {"template": {"metadata": {"annotations": {restart: "now", network: "outside"}}}}}
    cluster.kubectl("patch", "deployment", "demo-engine", "--type=merge", "-p", json.dumps(patch))
    edited = cluster.get("deployment", "demo-engine")["spec"]["template"]["metadata"]["annotations"]
    assert edited == {restart: "now", network: "outside"}, "the edit did not take: the test would prove nothing"
    await served.reconcile()
    assert cluster.get("deployment", "demo-engine")["spec"]["template"]["metadata"]["annotations"] == {restart: "now"}
    served.reconciler.writes.clear()
    await served.reconcile(2)
    assert set(served.reconciler.writes) <= {"status"}


async def test_what_is_no_longer_declared_disappears(cluster: Any, served: Any, manifest: Any) -> None:
    manifest["spec"]["gateway"]["template"] = {"nodeSelector": {"zone": "a"}, "labels": {"team": "x"}}
    cluster.apply(manifest)
    await served.reconcile()
    pod = cluster.get("deployment", "demo-gateway")["spec"]["template"]
    assert pod["spec"]["nodeSelector"] == {"zone": "a"}
    del manifest["spec"]["gateway"]["template"]
    manifest["spec"]["tenants"] = manifest["spec"]["tenants"][:1]
    cluster.apply(manifest)
    await served.reconcile()
    pod = cluster.get("deployment", "demo-gateway")["spec"]["template"]
    assert "nodeSelector" not in pod["spec"]
    assert "team" not in pod["metadata"]["labels"]
    assert ("Secret", "demo-key-globex") not in await cluster.children()


async def test_a_refused_policy_leaves_everything_as_it_runs(cluster: Any, served: Any, manifest: Any) -> None:
    before = await cluster.versions()
    manifest["spec"]["gateway"]["tls"] = {"secretName": "not-there"}
    manifest["spec"]["engine"]["replicas"] = 5
    cluster.apply(manifest)
    await served.reconcile(2)
    after = await cluster.versions()
    del before["TenantPolicy", "demo"], after["TenantPolicy", "demo"]
    assert after == before
    accepted = await cluster.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SecretMissing")
    assert "spec.gateway.tls.secretName" in accepted["message"]
    assert (await cluster.condition("Ready"))["reason"] == "SecretMissing"
    assert (await cluster.condition("EngineReady"))["status"] == "True"

    copy = cluster.get("configmap", "demo-accepted")["data"]["accepted.json"]
    edited = copy.replace('\\"replicas\\":1', '\\"replicas\\":7', 1)
    assert edited != copy, "the edit did not take: the test would prove nothing"
    cluster.kubectl("patch", "configmap", "demo-accepted", "--type=merge", "-p", json.dumps({"data": {"accepted.json": edited}}))
    served.restart()
    await served.reconcile()
    assert cluster.get("deployment", "demo-engine")["spec"]["replicas"] == 1, "an edited copy never comes into force"
    cluster.kubectl("patch", "configmap", "demo-accepted", "--type=merge", "-p", json.dumps({"data": {"accepted.json": copy}}))

    cluster.kubectl("delete", "networkpolicy", "demo-engine")
    served.restart()
    await served.reconcile()
    assert ("NetworkPolicy", "demo-engine") in await cluster.children(), "the last accepted spec is kept, not only left alone"
    assert cluster.get("deployment", "demo-engine")["spec"]["replicas"] == 1


async def test_a_first_policy_that_is_refused_makes_nothing(cluster: Any, operator: Any, manifest: Any) -> None:
    manifest["spec"]["gateway"]["tls"] = {"secretName": "not-there"}
    cluster.apply(manifest)
    await operator.reconcile()
    assert await cluster.children() == {}
    version = (await cluster.policy())["metadata"]["resourceVersion"]
    await operator.reconcile()
    assert (await cluster.policy())["metadata"]["resourceVersion"] == version


async def test_an_object_of_another_is_not_overwritten(cluster: Any, operator: Any, manifest: Any) -> None:
    cluster.kubectl("create", "configmap", "demo-gateway", "--from-literal=mine=1")
    cluster.apply(manifest)
    await operator.reconcile()
    assert (await cluster.condition("Accepted"))["reason"] == "ObjectNameTaken"
    assert cluster.get("configmap", "demo-gateway")["data"] == {"mine": "1"}


async def test_deletion_collects_every_child(cluster: Any, served: Any) -> None:
    cluster.kubectl("delete", "tenantpolicy", "demo", "--wait=true")
    assert await served.reconcile() is None
    for _ in range(150):
        if not await cluster.children():
            break
        await asyncio.sleep(0.2)
    assert await cluster.children() == {}


async def test_nothing_of_ours_waits_for_us_to_be_deleted(cluster: Any, served: Any) -> None:
    manifests = [await cluster.policy(), *(await cluster.children()).values()]
    assert not [
        manifest["metadata"]["name"] for manifest in manifests if "blockwarden" in str(manifest["metadata"].get("finalizers"))
    ]
    assert "kopf" not in json.dumps(manifests)


async def test_no_secret_is_anywhere_but_in_its_secret(cluster: Any, served: Any) -> None:
    children = await cluster.children()
    values = {value for (kind, _), manifest in children.items() if kind == "Secret" for value in manifest["data"].values()}
    keyring = json.loads(await cluster.secret("demo-salt-keyring", "keyring.json"))
    engine = json.loads(await cluster.secret("demo-engine-key", "keys.json"))
    canaries = {
        *values,
        keyring["secrets"][0]["secret"],
        engine["keys"][0]["key"],
        (await cluster.secret("demo-key-acme", "api-key")).decode(),
        (await cluster.secret("demo-ca", "tls.key")).decode().splitlines()[1],
    }
    for manifest in children.values():
        if manifest.get("type") == "Opaque":
            del manifest["data"]
    everything = json.dumps([*children.values(), await cluster.policy(), *await cluster.events()])
    everything += cluster.kubectl("get", "pods,replicasets,endpointslices", "-o", "json")
    assert len(canaries) > 8
    assert not [canary for canary in canaries if canary in everything]


async def test_a_probe_that_gets_through_says_so(cluster: Any, fleet: Any, served: Any) -> None:
    assert (await cluster.condition("NetworkIsolated"))["reason"] == "Enforced"
    fleet.open_ports.add(8000)
    await served.reconcile()
    found = await cluster.condition("NetworkIsolated")
    assert (found["status"], found["reason"]) == ("False", "NotEnforced")
    assert (await cluster.condition("Ready"))["status"] == "False"


async def test_an_engine_that_fails_attestation_says_so(cluster: Any, fleet: Any, served: Any) -> None:
    fleet.attested = False
    await fleet.refresh()
    await served.reconcile()
    found = await cluster.condition("IsolationVerified")
    assert (found["status"], found["reason"]) == ("False", "AttestationFailed")
    assert "shares cache" in found["message"]
