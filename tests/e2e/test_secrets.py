"""Issue point 9: no secret anywhere but in its Secret and at its listed mounts."""

from __future__ import annotations

import base64
import json

import pytest

from stack.deploy import NAMESPACE, POLICY, SYSTEM

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SEARCH = """
import base64, json, os, pathlib, sys
needles = json.loads({needles!r})
roots = ["/etc/blockwarden", "/tmp", "/dev/shm", "/run", "/var", "/home", "/models"]
def hay():
    for environ in pathlib.Path("/proc").glob("[0-9]*/environ"):
        yield str(environ), environ
    for commandline in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        yield str(commandline), commandline
    for root in roots:
        for folder, _, names in os.walk(root):
            for name in names:
                path = pathlib.Path(folder, name)
                if path.is_file() and path.stat().st_size < 50_000_000:
                    yield str(path), path
looked = 0
for name, path in hay():
    try:
        content = path.read_bytes()
    except OSError:
        continue
    looked += 1
    for label, text in needles:
        if text.encode() in content:
            print(json.dumps([label, name]))
print(json.dumps(["looked", str(looked)]))
"""


@pytest.fixture(scope="module")
def secrets(product) -> dict[str, list[str]]:
    """Secret name -> the strings in it that must not show elsewhere: whole values, their base64, and key material inside JSON."""
    found: dict[str, list[str]] = {}
    for item in product.cluster.get("-n", NAMESPACE, "secrets", "-l", f"app.kubernetes.io/instance={POLICY}")["items"]:
        strings = []
        for key, encoded in item["data"].items():
            if key in ("tls.crt", "ca.crt", "digests.json"):
                continue  # certificates are public; digests are of keys that cannot be guessed
            value = base64.b64decode(encoded).decode()
            strings += [encoded, *material(value)]
        if strings:
            found[item["metadata"]["name"]] = strings
    assert {f"{POLICY}-salt-keyring", f"{POLICY}-engine-key", f"{POLICY}-ca", f"{POLICY}-key-acme"} <= set(found)
    assert all(len(text) >= 40 for strings in found.values() for text in strings)
    return found


def material(value: str) -> list[str]:
    """The secret strings of one value: keys within JSON, the body lines of PEM, or the value as it is."""
    if value.startswith("{"):
        document = json.loads(value)
        entries = document.get("secrets", []) + document.get("keys", [])
        return [entry[name] for entry in entries for name in ("secret", "key") if name in entry]
    if "PRIVATE KEY" in value:
        return [line for line in value.splitlines() if len(line) >= 48]
    return [value]


def leaks(text: str, secrets: dict[str, list[str]]) -> set[str]:
    return {name for name, strings in secrets.items() if any(string in text for string in strings)}


def search(product, pod: str, secrets: dict[str, list[str]]) -> list[list[str]]:
    """[Secret, file] for every secret found in a pod, and a last line that says how many files were looked at."""
    needles = [[name, string] for name, strings in secrets.items() for string in strings]
    output = product.run_in(pod, SEARCH.format(needles=json.dumps(needles)), timeout=120)
    return [json.loads(line) for line in output.splitlines()]


def test_no_object_holds_a_secret(product, secrets) -> None:
    kinds = product.cluster.run("api-resources", "--verbs=list", "-o", "name").split()
    dumps = {
        kind: product.cluster.run("get", kind, "-A", "-o", "json", "--show-managed-fields") for kind in kinds if kind != "secrets"
    }
    assert {"configmaps", "events", "tenantpolicies.blockwarden.dev", "pods", "deployments.apps"} <= set(dumps)
    assert {kind: leaks(text, secrets) for kind, text in dumps.items() if leaks(text, secrets)} == {}
    everything = product.cluster.run("get", "secrets", "-A", "-o", "json")
    assert leaks(everything, secrets) == set(secrets), "the control: the same search finds every secret in its Secret"


def test_no_secret_carries_another_in_its_metadata(product, secrets) -> None:
    items = product.cluster.get("-n", NAMESPACE, "secrets", "--show-managed-fields")["items"]
    assert leaks(json.dumps([item["metadata"] for item in items]), secrets) == set()


def test_no_log_holds_a_secret(product, secrets) -> None:
    logs = ""
    for namespace in (NAMESPACE, SYSTEM):
        for pod in product.cluster.get("-n", namespace, "pods")["items"]:
            logs += product.cluster.run("-n", namespace, "logs", pod["metadata"]["name"], "--all-containers", "--tail=-1")
    assert len(logs) > 1000
    assert leaks(logs, secrets) == set()


def test_the_engine_pod_holds_its_own_secrets_only_at_their_mounts(product, secrets) -> None:
    pod = product.deployed.pods("engine")[0]["metadata"]["name"]
    lines = search(product, pod, secrets)
    looked = int(lines.pop()[1])
    assert looked > 10
    where = {(name, path.split("/..")[0]) for name, path in lines}
    assert where == {
        (f"{POLICY}-engine-key", "/etc/blockwarden/engine-key"),
        (f"{POLICY}-engine-key", "/etc/blockwarden/engine-key/keys.json"),
        (f"{POLICY}-engine-tls", "/etc/blockwarden/tls/server"),
        (f"{POLICY}-engine-tls", "/etc/blockwarden/tls/server/tls.key"),
    }


def test_the_gateway_has_no_secret_in_its_environment(product, secrets) -> None:
    pod = product.deployed.pods("gateway")[0]["metadata"]["name"]
    lines = search(product, pod, secrets)
    assert int(lines.pop()[1]) > 10
    assert all(path.startswith("/etc/blockwarden/") for _, path in lines)
    mounted = {name for name, _ in lines}
    allowed = {f"{POLICY}-{part}" for part in ("salt-keyring", "engine-key", "gateway-client-tls", "gateway-internal-tls")}
    assert mounted == allowed
