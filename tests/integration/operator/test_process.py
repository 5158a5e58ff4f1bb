"""The operator as a process: `python -m blockwarden_operator` with kopf's watches, under the role that the code says it needs."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from blockwarden_operator.rbac import RULES
from localnode.controlplane import ControlPlane

pytestmark = pytest.mark.integration


class Process:
    """A running operator."""

    def __init__(self, kubeconfig: Path, log: Path, namespace: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self.log = log
        environment = {
            **{name: value for name, value in os.environ.items() if name in ("PATH", "HOME")},
            "KUBECONFIG": str(kubeconfig),
            "BLOCKWARDEN_NAMESPACE": "blockwarden-system",
            "BLOCKWARDEN_ENGINE_IMAGE": "blockwarden/engine:0.1.0",
            "BLOCKWARDEN_GATEWAY_IMAGE": "blockwarden/gateway:0.1.0",
            "BLOCKWARDEN_WATCH_NAMESPACES": namespace,
            "BLOCKWARDEN_PROBE": "false",
            "BLOCKWARDEN_PORT": str(self.port),
        }
        with log.open("ab") as output:
            argv = (sys.executable, "-m", "blockwarden_operator")
            self.process = subprocess.Popen(argv, env=environment, stdout=output, stderr=output)

    def fetch(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(20)


@pytest.fixture
def kubeconfig(cluster: Any, control_plane: ControlPlane, tmp_path: Path) -> Path:
    """A kubeconfig of a service account with `rbac.RULES` in the namespace and nothing else."""
    rules = [{"apiGroups": [rule.group], "resources": list(rule.resources), "verbs": list(rule.verbs)} for rule in RULES]
    meta = {"name": "operator", "namespace": cluster.namespace}
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": cluster.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"}
    documents = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta, "rules": rules},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": reference,
            "subjects": [subject],
        },
    ]
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))
    token = cluster.kubectl("create", "token", "operator").strip()
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
    path = tmp_path / "operator.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture
def start(cluster: Any, kubeconfig: Path, tmp_path: Path) -> Iterator[Any]:
    running: list[Process] = []

    def begin() -> Process:
        running.append(Process(kubeconfig, tmp_path / "operator.log", cluster.namespace))
        return running[-1]

    yield begin
    for process in running:
        process.stop()


async def until(condition: Any, seconds: float, what: str) -> float:
    """Waits; returns how long it took."""
    began = time.monotonic()
    while not await condition():
        assert time.monotonic() - began < seconds, f"{what} did not come within {seconds} s"
        await asyncio.sleep(0.1)
    return time.monotonic() - began


async def is_up(cluster: Any) -> bool:
    found = await cluster.condition("Accepted")
    return bool(found.get("status") == "True")


async def test_the_process_serves_repairs_and_restarts_without_a_write(cluster: Any, start: Any, manifest: Any) -> None:
    operator = start()
    cluster.apply(manifest)
    await until(lambda: is_up(cluster), 30, f"the status (log: {operator.log.read_text()})")
    before = await cluster.children()

    cluster.kubectl("delete", "networkpolicy", "--all", "--wait=true")

    async def policies_are_back() -> bool:
        return {ref for ref in await cluster.children() if ref[0] == "NetworkPolicy"} == {
            ref for ref in before if ref[0] == "NetworkPolicy"
        }

    await until(policies_are_back, 10, "the NetworkPolicies")
    assert operator.fetch("/healthz") == "ok\n"
    assert "blockwarden_operator_reconciles_total" in operator.fetch("/metrics")

    await settled(cluster)
    assert operator.stop() == 0
    versions = await cluster.versions()
    again = start()

    async def has_reconciled() -> bool:
        try:
            metrics = again.fetch("/metrics")
        except OSError:
            return False
        return "blockwarden_operator_reconciles_total 0.0" not in metrics

    await until(has_reconciled, 30, "a reconcile after the restart")
    await asyncio.sleep(4)
    assert await cluster.versions() == versions
    again.stop()

    log = again.log.read_text()
    secrets = [manifest for (kind, _), manifest in (await cluster.children()).items() if kind == "Secret"]
    assert "wrote" in log
    assert not [value for secret in secrets for value in secret["data"].values() if value in log]
    assert (await cluster.secret("demo-key-acme", "api-key")).decode() not in log
    assert "Traceback" not in log
    assert "forbidden" not in log.lower()


async def settled(cluster: Any) -> None:
    """Until the controllers have nothing more to say about the new objects."""
    last: dict[Any, str] = {}
    for _ in range(40):
        now = await cluster.versions()
        if now == last:
            return
        last = now
        await asyncio.sleep(2)
    raise AssertionError("the objects never settled")


async def test_without_the_crd_the_process_ends_with_a_sentence(control_plane: ControlPlane, tmp_path: Path) -> None:
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{port}"}
    path = tmp_path / "empty.kubeconfig"
    path.write_text(yaml.safe_dump(config))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"kind":"Status","status":"Failure","reason":"NotFound","code":404}'
        head = f"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", port):
        operator = Process(path, tmp_path / "operator.log", "default")
        code = await asyncio.to_thread(operator.process.wait, 30)
    assert code == 1
    assert "install the chart blockwarden-crds first" in operator.log.read_text()
