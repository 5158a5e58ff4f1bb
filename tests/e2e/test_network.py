"""Issue point 3: what may be reached from where, on a node whose NetworkPolicies are enforced, with a control that has none."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from blockwarden_core.keys import EngineKeys
from blockwarden_core.salt import sign_token
from stack.deploy import NAMESPACE, POLICY, SYSTEM
from stack.kubectl import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ELSEWHERE = "blockwarden-elsewhere"
CONNECT = """
import socket, sys
for host, port in {targets}:
    try:
        socket.create_connection((host, port), timeout=3).close()
        print(f"{{host}}:{{port}} open")
    except OSError:
        print(f"{{host}}:{{port}} closed")
"""
LISTEN = """
import socket, time
server = socket.create_server(("0.0.0.0", 5557))
print("listening", flush=True)
server.settimeout(1)
end = time.monotonic() + 600
while time.monotonic() < end:
    try:
        server.accept()[0].close()
    except TimeoutError:
        pass
"""


def idle_pod(product, name: str, namespace: str, **spec: object) -> dict[str, object]:
    """A pod that only waits to be told what to try."""
    labels = spec.pop("labels", {"app": name})
    mounts = spec.pop("mounts", [])
    container = {
        "name": "probe",
        "image": product.deployed.images.gateway,
        "command": ["python3", "-c", "import time; time.sleep(3600)"],
        "volumeMounts": mounts,
    }
    body = {"containers": [container], "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False} | spec
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": body}


@pytest.fixture(scope="module")
def probes(product) -> Iterator[list[tuple[str, str]]]:
    """(namespace, pod) of an ordinary pod elsewhere and of one beside the engines."""
    cluster = product.cluster
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ELSEWHERE}})
    pods = [(ELSEWHERE, "probe"), (NAMESPACE, "probe")]
    for namespace, name in pods:
        cluster.apply(idle_pod(product, name, namespace))
    for namespace, name in pods:
        cluster.run("-n", namespace, "wait", f"pod/{name}", "--for=condition=Ready", "--timeout=90s")
    yield pods
    cluster.run("-n", NAMESPACE, "delete", "pod", "probe", "--wait=false")
    cluster.run("delete", "namespace", ELSEWHERE, "--wait=false")


@pytest.fixture(scope="module")
def listener(product) -> Iterator[None]:
    """Something that listens on the KV-event port of the engine pod, where vLLM itself would not."""
    pod = product.deployed.pods("engine")[0]["metadata"]["name"]
    command = [product.cluster.kubectl, f"--kubeconfig={product.cluster.kubeconfig}", "-n", NAMESPACE]
    command += ["exec", pod, "--", "python3", "-c", LISTEN]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "listening"
    yield
    process.kill()
    process.wait(timeout=10)
    process.stdout.close()


def inner_ports(product) -> list[tuple[str, int]]:
    """Every port that tenants must not reach, by pod address."""
    engine = product.deployed.pods("engine")[0]["status"]["podIP"]
    gateway = product.deployed.pods("gateway")[0]["status"]["podIP"]
    return [(engine, 8000), (engine, 9400), (engine, 5557), (gateway, 9090)]


def attempts(product, namespace: str, pod: str, targets: list[tuple[str, int]]) -> set[str]:
    """How each connection went."""
    lines = product.run_in(pod, CONNECT.format(targets=targets), namespace=namespace).splitlines()
    assert len(lines) == len(targets)
    return {line.rsplit(" ", 1)[1] for line in lines}


def scale_operator(product, replicas: int) -> None:
    deployment = product.cluster.get("-n", SYSTEM, "deployments")["items"][0]["metadata"]["name"]
    product.cluster.run("-n", SYSTEM, "scale", f"deployment/{deployment}", f"--replicas={replicas}")
    if replicas == 0:
        wait_for("the end of the operator", lambda: not product.cluster.get("-n", SYSTEM, "pods")["items"] or None, timeout=90)
    else:
        product.cluster.run("-n", SYSTEM, "rollout", "status", f"deployment/{deployment}", "--timeout=90s")


def policies(product) -> dict[str, str]:
    items = product.cluster.get("-n", NAMESPACE, "networkpolicies")["items"]
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in items}


def test_no_inner_port_opens_to_an_ordinary_pod(product, probes, listener) -> None:
    for namespace, pod in probes:
        assert attempts(product, namespace, pod, inner_ports(product)) == {"closed"}, f"from {namespace}"


def test_the_public_port_opens_to_everybody(product, probes) -> None:
    gateway = product.deployed.pods("gateway")[0]["status"]["podIP"]
    for namespace, pod in probes:
        assert attempts(product, namespace, pod, [(gateway, 8080)]) == {"open"}, f"from {namespace}"


def test_deleted_policies_come_back(product, probes, listener) -> None:
    before = policies(product)
    assert before
    product.cluster.run("-n", NAMESPACE, "delete", "networkpolicies", "--all")
    started = time.monotonic()
    wait_for("the policies", lambda: set(policies(product)) == set(before) or None, timeout=10, every=0.2)
    assert time.monotonic() - started < 10
    assert not set(policies(product).values()) & set(before.values())
    namespace, pod = probes[0]
    wait_for("closed ports", lambda: attempts(product, namespace, pod, inner_ports(product)) == {"closed"} or None, timeout=30)


def test_the_same_probes_connect_where_there_are_no_policies(product, probes, listener) -> None:
    """The control: without it, a probe that can never connect would pass for isolation."""
    scale_operator(product, 0)
    try:
        product.cluster.run("-n", NAMESPACE, "delete", "networkpolicies", "--all")
        for namespace, pod in probes:
            opened = lambda n=namespace, p=pod: attempts(product, n, p, inner_ports(product)) == {"open"} or None  # noqa: E731
            wait_for(f"open ports from {namespace}", opened, timeout=60)
    finally:
        scale_operator(product, 1)
    namespace, pod = probes[0]
    wait_for("closed ports", lambda: attempts(product, namespace, pod, inner_ports(product)) == {"closed"} or None, timeout=60)


SEND = """
import http.client, json, ssl
host, bodies, certificate = {host!r}, json.loads({bodies!r}), {certificate!r}
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE
if certificate:
    context.load_cert_chain("/client/tls.crt", "/client/tls.key")
for body in bodies:
    try:
        connection = http.client.HTTPSConnection(host, 8000, context=context, timeout=20)
        connection.request("POST", "/v1/completions", json.dumps(body), {{"content-type": "application/json"}})
        response = connection.getresponse()
        answer = response.read().decode()
        print(json.dumps([response.status, json.loads(answer)["error"]["code"] if response.status != 200 else answer[:60]]))
    except (ssl.SSLError, ConnectionError) as error:
        print(json.dumps([0, type(error).__name__]))
"""


@pytest.fixture(scope="module")
def impostor(product) -> Iterator[str]:
    """A pod that passes the network by the gateway's labels, and that has stolen the gateway's client certificate."""
    labels = dict(product.deployed.pods("gateway")[0]["metadata"]["labels"])
    del labels["pod-template-hash"]  # with it the gateway's ReplicaSet would adopt the pod, or end it
    volumes = [{"name": "client", "secret": {"secretName": f"{POLICY}-gateway-client-tls"}}]
    mounts = [{"name": "client", "mountPath": "/client", "readOnly": True}]
    cluster = product.cluster
    cluster.apply(idle_pod(product, "impostor", NAMESPACE, labels=labels, volumes=volumes, mounts=mounts))
    cluster.run("-n", NAMESPACE, "wait", "pod/impostor", "--for=condition=Ready", "--timeout=90s")
    yield "impostor"
    cluster.run("-n", NAMESPACE, "delete", "pod", "impostor", "--wait=true")


def send(product, pod: str, bodies: list[dict[str, object]], *, certificate: bool) -> list[list[object]]:
    engine = product.deployed.pods("engine")[0]["status"]["podIP"]
    script = SEND.format(host=engine, bodies=json.dumps(bodies), certificate=certificate)
    wait_for("the network", lambda: attempts(product, NAMESPACE, pod, [(engine, 8000)]) == {"open"} or None, timeout=30)
    return [json.loads(line) for line in product.run_in(pod, script, timeout=120).splitlines()]


def completion(salt: str | None, *, stream: bool) -> dict[str, object]:
    body: dict[str, object] = {"model": "smollm2-135m-instruct", "prompt": "Hello", "max_tokens": 1, "stream": stream}
    return body if salt is None else body | {"cache_salt": salt}


def test_past_the_network_the_engine_wants_a_client_certificate(product, impostor) -> None:
    [[status, error]] = send(product, impostor, [completion(None, stream=False)], certificate=False)
    assert status == 0, error


def test_past_the_certificate_the_engine_wants_a_living_salt(product, impostor) -> None:
    keys = EngineKeys.read(product.cluster.secret(NAMESPACE, f"{POLICY}-engine-key", "keys.json"))
    uid = product.deployed.policy()["metadata"]["uid"]
    generations = {entry["name"]: entry["saltGeneration"] for entry in product.deployed.policy()["status"]["tenants"]}
    assert generations["acme"] > 1, "the demo has rotated, so generation 1 is retired"

    def signed(key: bytes, generation: int) -> str:
        return sign_token(key, policy_uid=uid, tenant="acme", generation=generation, salt="A" * 43)

    refused = {
        "salt_missing": None,
        "salt_malformed": "guess",
        "salt_forged": signed(bytes(32), generations["acme"]),
        "salt_retired": signed(keys.signing_key, 1),
    }
    bodies = [completion(salt, stream=stream) for salt in refused.values() for stream in (False, True)]
    expected = [[403, code] for code in refused for _ in (False, True)]
    assert send(product, impostor, bodies, certificate=True) == expected
    living = completion(signed(keys.signing_key, generations["acme"]), stream=False)
    assert send(product, impostor, [living], certificate=True)[0][0] == 200, "the control: a living token is served"
