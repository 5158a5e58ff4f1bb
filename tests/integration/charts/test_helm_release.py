"""The life of a release on a real apiserver: first install, upgrade, a policy taken out, uninstall, install again."""

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from localnode.controlplane import ControlPlane, Programs
from stack.charts import ROOT, Charts
from stack.kubectl import Cluster, CommandError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]  # the first use on a machine builds the control plane
NAMESPACE = "blockwarden-system"
GOLDENS = sorted((ROOT / "tests/golden/charts").glob("*.yaml"))
CRD = "customresourcedefinition/tenantpolicies.blockwarden.dev"


@pytest.fixture
def cluster(charts: Charts) -> Iterator[Cluster]:
    """A control plane that has seen nothing yet: the first install is what this is about."""
    with ControlPlane("helm-release") as plane:
        yield Cluster(plane.kubeconfig, Programs.resolve().kubectl, charts.helm)


@pytest.fixture
def release(charts: Charts, cluster: Cluster, tmp_path: Path) -> Iterator["Release"]:
    """The stack; a thread runs the one pod there is, since a control plane alone has no kubelet."""
    done = threading.Event()
    kubelet = threading.Thread(target=play_kubelet, args=(cluster, tmp_path, done))
    kubelet.start()
    yield Release(charts, cluster)
    done.set()
    kubelet.join()


def play_kubelet(cluster: Cluster, scratch: Path, done: threading.Event) -> None:
    """Runs the command of every pod of the waiting Job on this machine, with its account's token, and reports its success."""
    ran: set[str] = set()
    while not done.wait(0.2):
        for pod in cluster.get("-n", NAMESPACE, "pods", "-l", "app.kubernetes.io/component=api-wait")["items"]:
            if pod["metadata"]["uid"] not in ran:
                ran.add(pod["metadata"]["uid"])
                run_pod(cluster, scratch, pod)


def run_pod(cluster: Cluster, scratch: Path, pod: dict[str, Any]) -> None:
    """One pod's container as a process, with its service account's files in `scratch` and the API server of the kubeconfig."""
    config = json.loads(cluster.run("config", "view", "--raw", "-o", "json"))["clusters"][0]["cluster"]
    token = cluster.run("-n", NAMESPACE, "create", "token", pod["spec"]["serviceAccountName"])
    (scratch / "token").write_text(token.strip())
    authority = config.get("certificate-authority-data")
    (scratch / "ca.crt").write_bytes(
        base64.b64decode(authority) if authority else Path(config["certificate-authority"]).read_bytes()
    )
    (container,) = pod["spec"]["containers"]
    python, flag, script = container["command"]
    script = script.replace("/var/run/secrets/kubernetes.io/serviceaccount", str(scratch))
    host, port = config["server"].removeprefix("https://").rsplit(":", 1)
    environment = os.environ | {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    assert python == "python3"
    subprocess.run([sys.executable, flag, script], env=environment, timeout=60, check=True)
    status = json.dumps({"status": {"phase": "Succeeded"}})
    name = pod["metadata"]["name"]
    cluster.run("-n", NAMESPACE, "patch", "pod", name, "--subresource=status", "--type=merge", "-p", status)


class Release:
    """The stack as a release, and what a user does with it."""

    def __init__(self, charts: Charts, cluster: Cluster) -> None:
        self.charts, self.cluster = charts, cluster
        self.spec = yaml.safe_load((ROOT / "examples/tenantpolicy-minimal.yaml").read_text())["spec"]

    def apply(self, *names: str, **values: Any) -> None:
        policies = [{"name": name, "spec": self.spec} for name in names]
        words = ("upgrade", "--install", "blockwarden", str(self.charts.stack), "--namespace", NAMESPACE, "--create-namespace")
        file = self.charts.root / "values.yaml"
        file.write_text(yaml.safe_dump({"tenantPolicies": policies, **values}))
        self.cluster.run(*words, "--values", str(file), tool=self.cluster.helm)

    def helm(self, *words: str) -> str:
        return self.cluster.run(*words, "--namespace", NAMESPACE, tool=self.cluster.helm)

    def policies(self) -> dict[str, str]:
        """UIDs by name: a policy that was deleted and made again has another one."""
        items = self.cluster.get("-n", NAMESPACE, "tenantpolicies")["items"]
        return {item["metadata"]["name"]: item["metadata"]["uid"] for item in items}

    def owned(self) -> set[str]:
        """Names of the TenantPolicies in the release's manifest."""
        manifest = yaml.safe_load_all(self.helm("get", "manifest", "blockwarden"))
        return {each["metadata"]["name"] for each in manifest if each and each["kind"] == "TenantPolicy"}


def test_policies_outlive_every_step_of_a_release(release: Release) -> None:
    release.apply("a")
    first = release.policies()
    assert set(first) == {"a"} and release.owned() == set(), "created by the hook, not yet the release's"

    release.apply("a", "b")
    assert release.owned() == {"a", "b"}, "the upgrade took the first one in"
    assert release.policies().items() >= first.items(), "without making it again"

    release.apply("b")
    assert set(release.policies()) == {"a", "b"}, "taken out of the values, kept in the cluster"

    release.helm("rollback", "blockwarden", "1")
    assert release.policies().items() >= first.items(), "revision 1 does not own it, and helm keeps it all the same"

    kept = release.policies()
    release.helm("uninstall", "blockwarden")
    assert release.policies() == kept
    assert release.cluster.get("deployments", "--all-namespaces")["items"] == []

    release.apply("a", "b")
    assert release.policies() == kept and release.owned() == {"a", "b"}, "a new install under the same name finds them again"

    release.cluster.run("-n", NAMESPACE, "delete", "tenantpolicy", "a")
    assert set(release.policies()) == {"b"}, "kubectl delete ends one"


def test_without_keep_the_api_goes_with_the_release(release: Release) -> None:
    """The broken twin: the same uninstall does delete what is not kept."""
    release.apply("a", crds={"keep": False})
    release.helm("uninstall", "blockwarden", "--wait")
    with pytest.raises(CommandError, match="NotFound"):
        release.cluster.get(CRD)


def test_a_policy_that_the_api_refuses_fails_the_install_with_the_apis_words(release: Release) -> None:
    release.spec = release.spec | {"tenants": [{"name": "Not_A_Name"}]}
    with pytest.raises(CommandError, match=r"spec\.tenants\[0\]\.name"):
        release.apply("a")


def test_the_api_server_takes_every_golden_manifest(release: Release, charts: Charts) -> None:
    cluster = release.cluster
    release.apply()
    names = {each["metadata"]["namespace"] for path in GOLDENS for each in objects(path) if "namespace" in each["metadata"]}
    for name in names - {NAMESPACE}:
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for path in GOLDENS:
        for manifest in objects(path):
            text = yaml.safe_dump(manifest)
            cluster.run("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", stdin=text)


def objects(path: Path) -> list[dict[str, Any]]:
    """A golden's objects, but ServiceMonitors, whose API is another project's, and TenantPolicies, whose specs are samples."""
    return [each for each in yaml.safe_load_all(path.read_text()) if each["kind"] not in ("ServiceMonitor", "TenantPolicy")]
