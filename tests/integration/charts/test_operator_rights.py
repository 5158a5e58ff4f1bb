"""The operator as the chart lets it run: its own service account, the chart's roles and environment, on a real apiserver."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from localnode.controlplane import ControlPlane, Programs
from stack.charts import ROOT, Charts
from stack.kubectl import Cluster, Timeout, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]  # the first use on a machine builds the control plane
SYSTEM, TEAM = "blockwarden-system", "team-a"


@pytest.fixture(scope="module")
def cluster(charts: Charts) -> Iterator[Cluster]:
    with ControlPlane("operator-rights") as plane:
        cluster = Cluster(plane.kubeconfig, Programs.resolve().kubectl, charts.helm)
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}})
        yield cluster


def install(charts: Charts, cluster: Cluster, namespaces: list[str]) -> dict[str, Any]:
    """The stack, with the operator confined to `namespaces`; the operator's Deployment."""
    values = charts.root / "rights.yaml"
    values.write_text(yaml.safe_dump({"operator": {"watchNamespaces": namespaces, "rbac": {"aggregateUserRoles": False}}}))
    cluster.install("blockwarden", charts.stack, "--namespace", SYSTEM, "--create-namespace", "--values", str(values))
    deployment: dict[str, Any] = cluster.get("-n", SYSTEM, "deployment", "blockwarden-operator")
    return deployment


def kubeconfig(cluster: Cluster, account: str, target: Path) -> Path:
    """A kubeconfig that holds the service account's token and nothing of the admin's."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    token = cluster.run("-n", SYSTEM, "create", "token", account).strip()
    config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
    target.write_text(yaml.safe_dump(config))
    return target


@pytest.fixture(params=[[], [TEAM]], ids=["cluster", "one namespace"])
def log(request: pytest.FixtureRequest, charts: Charts, cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """The log of an operator that runs under the rights it has with these namespaces."""
    pod = install(charts, cluster, request.param)["spec"]["template"]["spec"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = {each["name"]: SYSTEM if "valueFrom" in each else each.get("value", "") for each in pod["containers"][0]["env"]}
    environment = {"PATH": os.environ["PATH"], **told, "BLOCKWARDEN_PORT": str(port), "BLOCKWARDEN_PROBE": "false"}
    environment["KUBECONFIG"] = str(kubeconfig(cluster, pod["serviceAccountName"], tmp_path / "kubeconfig"))
    path = tmp_path / "operator.log"
    with path.open("wb") as output:
        command = [sys.executable, "-m", "blockwarden_operator"]
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    yield path
    process.terminate()
    process.wait(timeout=30)


def test_the_roles_are_enough_for_a_policy(log: Path, cluster: Cluster) -> None:
    manifest = yaml.safe_load((ROOT / "examples/demo.yaml").read_text())
    name = manifest["metadata"]["name"]
    manifest["metadata"]["namespace"] = TEAM
    cluster.apply(manifest)
    try:
        wait_for(f"the gateway of {name}", lambda: deployed(cluster, f"{name}-gateway"), timeout=60)
        assert "forbidden" not in log.read_text().lower()
    except Timeout:
        pytest.fail(f"{log.read_text()}\n{cluster.run('-n', TEAM, 'get', 'tenantpolicy', name, '-o', 'yaml')}")
    finally:
        cluster.run("-n", TEAM, "delete", "tenantpolicy", name)
        wait_for("the end of its objects", lambda: not deployed(cluster, f"{name}-gateway"), timeout=60)


def deployed(cluster: Cluster, name: str) -> bool:
    return name in {each["metadata"]["name"] for each in cluster.get("-n", TEAM, "deployments")["items"]}
