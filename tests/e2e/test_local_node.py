"""The local node does what a node must: runs pods, resolves names, serves Services, enforces NetworkPolicies.

The image of all pods is the base image itself; its Python is both server and client.
"""

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localnode import baseimage
from localnode.buildah import Buildah
from localnode.node import Node

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

WEB = {"app": "web"}
FETCH = "import sys, urllib.request as u; sys.stdout.write(str(u.urlopen(sys.argv[1], timeout=2).status))"


def pod(name: str, image: str, command: list[str], labels: dict[str, str], **extra: Any) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": command,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **extra.pop("container", {}),
    }
    spec = {"containers": [container], "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0, **extra}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def eventually(check: Callable[[], bool], timeout: float, what: str) -> float:
    begun = time.monotonic()
    while not check():
        assert time.monotonic() - begun < timeout, f"{what} not within {timeout} s"
        time.sleep(0.1)
    return time.monotonic() - begun


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node("bw-selftest") as running:
        yield running


@pytest.fixture(scope="module")
def image(node: Node) -> str:
    tag = baseimage.ensure(Buildah())
    node.load(tag)
    return tag


@pytest.fixture(scope="module")
def pods(node: Node, image: str) -> None:
    """A server behind a Service, and a client that only waits to be told what to fetch."""
    server = ["python3", "-m", "http.server", "--directory", "/mnt", "8080"]
    mount = {"volumeMounts": [{"name": "secret", "mountPath": "/mnt", "readOnly": True}]}
    probe = {"readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}}
    volumes = [{"name": "secret", "secret": {"secretName": "shown"}}]
    objects = [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "shown"}, "stringData": {"value": "one"}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": WEB, "ports": [{"port": 80, "targetPort": 8080}]},
        },
        pod("web", image, server, WEB, volumes=volumes, container={**mount, **probe}),
        pod("client", image, ["sleep", "infinity"], {"app": "client"}),
    ]
    node.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    node.kubectl("wait", "--for=condition=Ready", "--timeout=60s", "pod/web", "pod/client")


def fetches(node: Node, url: str) -> bool:
    argv = node.kubectl_command("exec", "client", "--", "python3", "-c", FETCH, url)
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout == "200"


def shown(node: Node) -> str:
    return node.kubectl("exec", "web", "--", "cat", "/mnt/value")


@pytest.mark.usefixtures("pods")
class TestRunning:
    def test_a_service_answers_by_name(self, node: Node) -> None:
        """DNS, kube-proxy and the pod network in one request; kubectl exec on the way."""
        eventually(lambda: fetches(node, "http://web.default.svc.cluster.local/value"), 10, "the Service")

    def test_logs_and_port_forward_work_from_the_host(self, node: Node) -> None:
        with subprocess.Popen(
            node.kubectl_command("port-forward", "pod/web", ":8080"), stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            port = int(process.stdout.readline().split("127.0.0.1:")[1].split(" ")[0])
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/value", timeout=5) as response:
                assert response.status == 200
            process.terminate()
        assert "/value" in node.kubectl("logs", "web")

    def test_a_forwarded_port_reaches_a_cluster_address(self, node: Node) -> None:
        address = node.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
        port = node.forward(0, address, 80)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as response:
            assert response.status == 200
        assert node.forward(0, address, 80) == port

    def test_pods_reach_the_apiserver(self, node: Node, image: str) -> None:
        """Operators run in pods: their client must get through the kubernetes Service with a mounted token."""
        script = (
            "import ssl, urllib.request as u, pathlib as p; d = p.Path('/var/run/secrets/kubernetes.io/serviceaccount');"
            "h = {'Authorization': 'Bearer ' + (d/'token').read_text()};"
            "r = u.Request('https://kubernetes.default.svc/version', headers=h);"
            "print(u.urlopen(r, timeout=5, context=ssl.create_default_context(cafile=d/'ca.crt')).status)"
        )
        client = pod("api-client", image, ["python3", "-c", script], {"app": "api-client"}, restartPolicy="Never")
        client["spec"]["automountServiceAccountToken"] = True
        node.kubectl("apply", "-f", "-", stdin=json.dumps(client))
        node.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=30s", "pod/api-client")

    def test_a_network_policy_denies_and_its_deletion_allows(self, node: Node) -> None:
        url = "http://web/value"
        spec = {"podSelector": {"matchLabels": WEB}, "policyTypes": ["Ingress"]}
        policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "closed"}, "spec": spec}
        eventually(lambda: fetches(node, url), 10, "the Service")
        node.kubectl("apply", "-f", "-", stdin=json.dumps(policy))
        closed = eventually(lambda: not fetches(node, url), 20, "denial")
        node.kubectl("delete", "networkpolicy", "closed")
        opened = eventually(lambda: fetches(node, url), 20, "admission")
        print(f"policy denied after {closed:.1f} s, its deletion allowed after {opened:.1f} s")

    def test_a_policy_admits_by_label(self, node: Node) -> None:
        """Not only all or nothing: the peer selector is what blockwarden's isolation rests on."""
        peers = [{"podSelector": {"matchLabels": {"role": "gateway"}}}]
        spec = {"podSelector": {"matchLabels": WEB}, "policyTypes": ["Ingress"], "ingress": [{"from": peers}]}
        policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "by-label"}, "spec": spec}
        node.kubectl("apply", "-f", "-", stdin=json.dumps(policy))
        try:
            eventually(lambda: not fetches(node, "http://web/value"), 20, "denial")
            node.kubectl("label", "pod", "client", "role=gateway")
            eventually(lambda: fetches(node, "http://web/value"), 20, "admission")
        finally:
            node.kubectl("delete", "networkpolicy", "by-label")
            node.kubectl("label", "pod", "client", "role-")

    def test_a_mounted_secret_is_refreshed_within_seconds(self, node: Node) -> None:
        times = []
        for value in ("two", "three", "four"):
            patch = json.dumps({"stringData": {"value": value}})
            node.kubectl("patch", "secret", "shown", "--patch", patch)
            times.append(eventually(lambda want=value: shown(node) == want, 10, "the new content"))
        print(f"mounted Secret refreshed after {', '.join(f'{t:.1f}' for t in times)} s")

    def test_a_crashing_container_is_restarted_at_once(self, node: Node, image: str) -> None:
        node.kubectl("apply", "-f", "-", stdin=json.dumps(pod("crashing", image, ["python3", "-c", "raise SystemExit(1)"], {})))
        path = "jsonpath={.status.containerStatuses[0].restartCount}"
        count = lambda: int(node.kubectl("get", "pod", "crashing", "-o", path) or 0)  # noqa: E731
        eventually(lambda: count() >= 4, 25, "four restarts")
        node.kubectl("delete", "pod", "crashing")


def test_loading_a_changed_top_layer_moves_that_layer_only(node: Node, image: str, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nCOPY payload /payload\n")
    tag = "localhost/blockwarden-selftest:top"
    for content in (b"first", b"second"):
        (tmp_path / "payload").write_bytes(content)
        Buildah().build([tag], tmp_path, arguments=[f"BASE_IMAGE={image}"])
        storage = Buildah().storage
        assert node.images.put(tag, storage.image(storage.image_id(tag)), storage.image_id(tag)) < 1 << 20
        assert node.images.current(tag, storage.image_id(tag))


def test_up_again_keeps_everything_and_restarts_what_died(node: Node) -> None:
    before = node.kubeconfig.read_text()
    node.supervisor.run("pkill", "-9", "-x", "kube-scheduler")
    eventually(lambda: "kube-scheduler" not in node.supervisor.running(), 5, "the death")
    node.up()
    assert "kube-scheduler" in node.supervisor.running()
    assert node.kubeconfig.read_text() == before
