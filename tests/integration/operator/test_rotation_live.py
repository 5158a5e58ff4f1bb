"""Rotation on a real apiserver, phase by phase, with the operator killed in between; and what happens when keys are lost."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
from typing import Any

import pytest
from cryptography import x509

from blockwarden_core.policy import EnginePolicy
from blockwarden_core.sealed import Sealed

pytestmark = pytest.mark.integration


async def keyring(cluster: Any) -> Any:
    return json.loads(await cluster.secret("demo-salt-keyring", "keyring.json"))


async def engine_policy(cluster: Any) -> EnginePolicy:
    manifest = await cluster.kube.get("ConfigMap", cluster.namespace, "demo-engine")
    return EnginePolicy.read(Sealed.read(manifest["data"]["engine.json"]).payload)


async def shares(cluster: Any) -> dict[str, tuple[int, int]]:
    return {share.name: (share.generation, share.floor) for share in (await engine_policy(cluster)).tenants}


async def rotation(cluster: Any) -> Any:
    return (await cluster.policy())["status"]["rotation"]


def annotate(cluster: Any, *annotations: str) -> None:
    cluster.kubectl("annotate", "tenantpolicy", "demo", "--overwrite", *annotations)


async def step(operator: Any) -> None:
    """One reconcile by an operator that remembers nothing."""
    operator.restart()
    await operator.reconcile()


async def test_a_rotation_walks_through_its_phases_each_by_a_fresh_operator(cluster: Any, fleet: Any, served: Any) -> None:
    old = (await keyring(cluster))["secrets"][0]
    annotate(cluster, "blockwarden.dev/rotate-salt=r1")
    await step(served)
    assert (await rotation(cluster))["phase"] == "Distributing"
    assert (await rotation(cluster))["observedID"] == "r1"
    assert next(secret["id"] for secret in (await keyring(cluster))["secrets"]) == old["id"]
    assert await shares(cluster) == {"acme": (1, 1), "globex": (1, 1), "canary": (2, 2)}

    await step(served)
    assert (await rotation(cluster))["phase"] == "Distributing", "no gateway has reported the new keyring"
    assert (await rotation(cluster))["waitingFor"] == [
        pod.pod.name for pod in fleet.pods.values() if pod.pod.component == "gateway"
    ]

    fleet.in_flight = {"acme": {"1": 3}}
    await fleet.refresh(engines=False)
    await step(served)
    assert (await rotation(cluster))["phase"] == "Draining"
    assert (await shares(cluster))["acme"] == (2, 1)
    await step(served)
    assert (await rotation(cluster))["phase"] == "Draining", "three requests of the old generation are in flight"

    fleet.in_flight = {"acme": {"2": 1}}
    await fleet.refresh(engines=False)
    await step(served)
    assert (await rotation(cluster))["phase"] == "Retiring"
    assert (await shares(cluster))["acme"] == (2, 2)
    await step(served)
    assert (await rotation(cluster))["phase"] == "Retiring", "the engine has not reported the risen floor"
    fleet.stale_blocks = 5
    await fleet.refresh()
    await step(served)
    assert (await rotation(cluster))["phase"] == "Retiring", "five blocks are not yet scrubbed"

    fleet.stale_blocks = 0
    await fleet.refresh()
    await step(served)
    assert (await rotation(cluster))["phase"] == "Idle"
    assert (await rotation(cluster))["generation"] == 2
    now = await keyring(cluster)
    assert old["id"] not in [secret["id"] for secret in now["secrets"]]
    assert old["secret"] not in json.dumps(now)
    assert now["generations"] == {"acme": 2, "globex": 2, "canary": 2}
    served.restart()
    await served.reconcile(3)
    assert served.reconciler.writes == []
    assert {"RotationStarted", "RotationFinished"} <= {event["reason"] for event in await cluster.events()}


async def test_a_pod_that_copied_a_gateways_labels_holds_up_nothing(cluster: Any, fleet: Any, served: Any) -> None:
    (real,) = [fake.pod for fake in fleet.pods.values() if fake.pod.component == "gateway"]
    labels = cluster.get("pod", real.name)["metadata"]["labels"]
    del labels["pod-template-hash"]  # with it, the ReplicaSet would adopt the pod and remove it as one too many
    spec = {"containers": [{"name": "x", "image": "x:1"}], "automountServiceAccountToken": False}
    twin = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "look-alike", "labels": labels}, "spec": spec}
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(twin))
    ready = {"phase": "Running", "podIP": "10.0.9.9", "conditions": [{"type": "Ready", "status": "True"}]}
    cluster.kubectl("patch", "pod", "look-alike", "--subresource=status", "--type=merge", "-p", json.dumps({"status": ready}))
    await step(served)
    assert (await cluster.condition("Ready"))["status"] == "True"

    annotate(cluster, "blockwarden.dev/rotate-salt=r1")
    await step(served)
    await step(served)
    assert (await rotation(cluster))["waitingFor"] == [real.name], "the gateway that is ours and has not answered, and no other"
    await fleet.refresh(engines=False)
    await step(served)
    assert (await rotation(cluster))["phase"] == "Draining"


class Killed(Exception):
    """The operator's process is gone."""


class DyingKube:
    """The client of an operator that is killed before its write number `lives`."""

    def __init__(self, kube: Any, lives: int) -> None:
        self._kube, self._lives = kube, lives

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._kube, name)
        if name not in ("apply", "apply_status", "create_event", "delete", "set_managed_fields"):
            return method

        async def write(*arguments: Any, **options: Any) -> Any:
            if self._lives == 0:
                raise Killed
            self._lives -= 1
            return await method(*arguments, **options)

        return write


@pytest.mark.parametrize("lives", [0, 1, 2, 3])
async def test_an_operator_killed_between_any_two_writes_loses_and_repeats_nothing(
    cluster: Any, fleet: Any, served: Any, lives: int
) -> None:
    annotate(cluster, "blockwarden.dev/rotate-salt=r1")
    phases = []
    for turn in range(40):
        served.restart()
        if turn % 2 == 0:
            served.reconciler.kube = DyingKube(cluster.kube, lives)
            with contextlib.suppress(Killed):
                await served.reconcile()
        else:
            await served.reconcile()
        await fleet.refresh()
        stored = await cluster.kube.get("Secret", cluster.namespace, "demo-salt-keyring")
        phases.append(json.loads(stored["metadata"]["annotations"]["blockwarden.dev/rotation"])["phase"])
        generations = (await keyring(cluster))["generations"]
        assert all(floor <= generations[name] for name, (_, floor) in (await shares(cluster)).items())
        if turn > 2 and phases[-1] == "Idle" and (await rotation(cluster))["phase"] == "Idle":
            break
    walked = [phase for phase, _ in itertools.groupby(phases)]
    assert walked[walked[0] == "Idle" :] == ["Distributing", "Draining", "Retiring", "Idle"]
    assert (await keyring(cluster))["generations"] == {"acme": 2, "globex": 2, "canary": 2}
    assert len((await keyring(cluster))["secrets"]) == 1
    assert await shares(cluster) == {"acme": (2, 2), "globex": (2, 2), "canary": (2, 2)}


async def test_one_tenant_rotates_alone(cluster: Any, fleet: Any, served: Any) -> None:
    annotate(cluster, "blockwarden.dev/rotate-salt.acme=leak-7")
    for _ in range(6):
        await step(served)
        await fleet.refresh()
    assert (await rotation(cluster))["phase"] == "Idle"
    assert (await rotation(cluster))["tenantIDs"] == {"acme": "leak-7"}
    assert (await keyring(cluster))["generations"] == {"acme": 2, "globex": 1, "canary": 2}
    assert await shares(cluster) == {"acme": (2, 2), "globex": (1, 1), "canary": (2, 2)}


async def test_a_draining_request_is_ended_at_the_deadline(cluster: Any, fleet: Any, served: Any) -> None:
    annotate(cluster, "blockwarden.dev/rotate-salt=r1")
    fleet.in_flight = {"acme": {"1": 1}}
    for _ in range(3):
        await step(served)
        await fleet.refresh()
    assert (await rotation(cluster))["phase"] == "Draining"
    served.shift += (served.shift.resolution * 10**6) * 61
    await step(served)
    assert (await rotation(cluster))["phase"] == "Retiring"


@pytest.mark.parametrize("loss", ["deleted", "damaged"])
async def test_a_lost_keyring_is_a_forced_and_visible_rotation(cluster: Any, fleet: Any, served: Any, loss: str) -> None:
    old = (await keyring(cluster))["secrets"][0]["secret"]
    if loss == "deleted":
        cluster.kubectl("delete", "secret", "demo-salt-keyring")
    else:
        cluster.kubectl("patch", "secret", "demo-salt-keyring", "--type=merge", "-p", '{"data":{"keyring.json":"e30="}}')
    await step(served)
    state = await rotation(cluster)
    assert (state["phase"], state["forced"], state["generation"]) == ("Distributing", True, 2)
    assert (await keyring(cluster))["generations"] == {"acme": 2, "globex": 2, "canary": 2}
    assert old not in json.dumps(await keyring(cluster))
    found = await cluster.condition("SecretsReady")
    assert (found["status"], found["reason"]) == ("False", "KeyringLost")
    assert "KeyringLost" in {event["reason"] for event in await cluster.events()}
    for _ in range(6):
        await fleet.refresh()
        await step(served)
    assert (await rotation(cluster))["phase"] == "Idle"
    assert await shares(cluster) == {"acme": (2, 2), "globex": (2, 2), "canary": (2, 2)}
    assert (await cluster.condition("SecretsReady"))["status"] == "True"


async def test_a_lost_record_neither_rotates_again_nor_forgets(cluster: Any, fleet: Any, served: Any) -> None:
    annotate(cluster, "blockwarden.dev/rotate-salt=r1")
    await step(served)
    before = await keyring(cluster)
    cluster.kubectl("annotate", "secret", "demo-salt-keyring", "blockwarden.dev/rotation-")
    await step(served)
    assert (await rotation(cluster))["phase"] == "Distributing"
    assert await keyring(cluster) == before
    for _ in range(6):
        await fleet.refresh()
        await step(served)
    assert (await rotation(cluster))["phase"] == "Idle"
    assert (await keyring(cluster))["generations"]["acme"] == 2


async def test_a_lost_engine_key_reseals_the_policy(cluster: Any, fleet: Any, served: Any) -> None:
    before = await engine_policy(cluster)
    cluster.kubectl("delete", "secret", "demo-engine-key")
    await step(served)
    after = await engine_policy(cluster)
    assert after.version > before.version
    assert after.tenants == before.tenants
    await fleet.refresh()  # opens the policy under the new key, or raises
    assert "EngineKeyReplaced" in {event["reason"] for event in await cluster.events()}


async def test_a_lost_ca_is_trusted_before_anything_is_issued_under_it(cluster: Any, fleet: Any, served: Any) -> None:
    leaf = await cluster.secret("demo-engine-tls", "tls.crt")
    cluster.kubectl("delete", "secret", "demo-ca")
    await step(served)
    assert await cluster.secret("demo-engine-tls", "tls.crt") == leaf
    assert len(x509.load_pem_x509_certificates(await cluster.secret("demo-engine-tls", "ca.crt"))) == 2
    # The pods still show certificates of the CA before, and the operator still believes them.
    await step(served)
    assert (await cluster.condition("IsolationVerified"))["status"] == "True"


async def test_a_lost_api_key_is_made_anew_and_its_digest_follows(cluster: Any, served: Any) -> None:
    before = await cluster.secret("demo-key-acme", "api-key")
    cluster.kubectl("delete", "secret", "demo-key-acme")
    await step(served)
    after = await cluster.secret("demo-key-acme", "api-key")
    assert after != before
    digests = (await cluster.secret("demo-api-keys", "digests.json")).decode()
    assert digests.count("digest") == 2
    assert "ApiKeyReplaced" in {event["reason"] for event in await cluster.events()}


async def test_api_keys_of_the_tenants_own_are_taken_from_their_secrets(cluster: Any, served: Any, manifest: Any) -> None:
    manifest["spec"]["tenants"][0]["apiKeys"] = [
        {"name": "good", "secretRef": {"name": "acme-keys", "key": "good"}},
        {"name": "weak", "secretRef": {"name": "acme-keys", "key": "weak"}},
    ]
    cluster.kubectl("create", "secret", "generic", "acme-keys", f"--from-literal=good={'g' * 40}", "--from-literal=weak=short")
    cluster.apply(manifest)
    await step(served)
    found = await cluster.condition("SecretsReady")
    assert (found["status"], found["reason"]) == ("False", "ApiKeyRefused")
    assert "apiKeys[weak]" in found["message"]
    assert "short" not in found["message"].replace("shorter", "")
    digests = json.loads(await cluster.secret("demo-api-keys", "digests.json"))
    assert [key["tenant"] for key in digests["keys"]] == ["acme", "globex"]
    assert ("Secret", "demo-key-acme") not in await cluster.children()
    assert base64.b64encode(b"g" * 40).decode() not in json.dumps(digests)
