"""Brings the product up on a cluster as a user would: helm install, kubectl apply, wait for Ready; and takes it away again."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from localnode.target import Target, tool
from stack.charts import ROOT, build_charts
from stack.images import Images
from stack.kubectl import Cluster, CommandError, Timeout, wait_for

RELEASE: Final = "blockwarden"
SYSTEM: Final = "blockwarden-system"
NAMESPACE: Final = "blockwarden-demo"
POLICY: Final = "demo"
TENANTS: Final = ("acme", "globex")
ROTATE: Final = "blockwarden.dev/rotate-salt"
MANIFEST: Final = ROOT / "examples" / "demo.yaml"


@dataclass(frozen=True)
class Deployed:
    """A demo policy that is Ready, and how to reach it."""

    cluster: Cluster
    images: Images

    def policy(self) -> Any:
        """The TenantPolicy as it stands."""
        return self.cluster.get("-n", NAMESPACE, "tenantpolicy", POLICY)

    def api_key(self, tenant: str) -> str:
        """The tenant's generated API key."""
        status = next(entry for entry in self.policy()["status"]["tenants"] if entry["name"] == tenant)
        return self.cluster.secret(NAMESPACE, status["apiKeySecret"], "api-key")

    def pods(self, component: str) -> list[Any]:
        """The policy's live pods of one component."""
        pods = self.cluster.get("-n", NAMESPACE, "pods", "-l", _selector(component))["items"]
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def ready(self) -> bool:
        """Whether Ready is true for the spec as it stands."""
        policy = self.policy()
        return condition(policy, "Ready").get("status") == "True" and observed(policy)

    def wait_ready(self, *, timeout: float = 420) -> None:
        """Waits for Ready.

        Raises:
            Timeout: it did not come; the message has the conditions as they stood last.
        """
        try:
            wait_for("TenantPolicy demo Ready", lambda: self.ready() or None, timeout=timeout, every=1)
        except Timeout as late:
            stood = self.policy().get("status", {}).get("conditions", [])
            unmet = [f"{entry['type']}={entry['status']} {entry['message']}" for entry in stood if entry["status"] != "True"]
            raise Timeout(f"{late}; " + ("; ".join(unmet) or "there are no conditions")) from None

    def restart_engine(self) -> None:
        """Deletes the engine pods and waits until their successors are attested and the policy is Ready again."""
        before = {pod["metadata"]["uid"] for pod in self.pods("engine")}
        self.cluster.run("-n", NAMESPACE, "delete", "pod", "-l", _selector("engine"), "--wait=true", timeout=180)

        def renewed() -> bool | None:
            now = {pod["metadata"]["uid"] for pod in self.pods("engine")}
            return (bool(now) and not now & before and self.ready()) or None

        wait_for("an engine after the restart", renewed, timeout=420, every=1)

    def rotate(self, rotation: str, *, timeout: float = 180) -> None:
        """Rotates every tenant's salt by annotation and waits for the end of the rotation."""
        self.cluster.run("-n", NAMESPACE, "annotate", "tenantpolicy", POLICY, f"{ROTATE}={rotation}", "--overwrite")
        self.wait_idle(timeout=timeout)

    def wait_idle(self, *, timeout: float = 180) -> None:
        """Waits for the end of every rotation that an annotation asks for."""

        def idle() -> bool | None:
            policy = self.policy()
            asked, done = policy["metadata"].get("annotations", {}), policy["status"].get("rotation", {})
            ids = {ROTATE: done.get("observedID")} | {f"{ROTATE}.{name}": id_ for name, id_ in done.get("tenantIDs", {}).items()}
            wanted = {key: value for key, value in asked.items() if key.startswith(ROTATE)}
            return (done.get("phase") == "Idle" and all(ids.get(key) == value for key, value in wanted.items())) or None

        wait_for("the end of the rotation", idle, timeout=timeout)


def _selector(component: str) -> str:
    return f"app.kubernetes.io/instance={POLICY},app.kubernetes.io/component={component}"


def condition(policy: Any, kind: str) -> dict[str, Any]:
    """One condition of a TenantPolicy, empty where it has none of that type yet."""
    conditions = policy.get("status", {}).get("conditions", [])
    return next((entry for entry in conditions if entry["type"] == kind), {})


def observed(policy: Any) -> bool:
    """Whether the status is about the spec as it stands."""
    return bool(policy.get("status", {}).get("observedGeneration") == policy["metadata"]["generation"])


def cluster_of(target: Target) -> Cluster:
    """The target's cluster with the pinned tools."""
    return Cluster(target.kubeconfig, kubectl=tool("kubectl"), helm=tool("helm"))


def install(cluster: Cluster, images: Images) -> None:
    """`helm install` of the stack with our images."""
    values = [f"--set=operator.{name}.{part}={value}" for name, image in _named(images) for part, value in _split(image)]
    options = ["--namespace", SYSTEM, "--create-namespace", "--wait", "--timeout", "5m", *values]
    with tempfile.TemporaryDirectory() as scratch:
        cluster.install(RELEASE, build_charts(Path(scratch)).stack, *options, timeout=360)


def apply_policy(cluster: Cluster, images: Images) -> Deployed:
    """`kubectl apply` of the example, as it is."""
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    cluster.apply(MANIFEST.read_text())
    return Deployed(cluster, images)


def remove(cluster: Cluster) -> None:
    """Everything that `install` and `apply_policy` made, from a cluster that goes on living."""
    cluster.run("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=180s", timeout=200)
    _uninstall(cluster)
    cluster.run("delete", "crd", "tenantpolicies.blockwarden.dev", "--ignore-not-found", "--timeout=120s", timeout=140)
    cluster.run("delete", "namespace", SYSTEM, "--ignore-not-found", "--timeout=180s", timeout=200)


def _uninstall(cluster: Cluster) -> None:
    try:
        cluster.run("uninstall", RELEASE, "--namespace", SYSTEM, "--wait", tool=cluster.helm, timeout=200)
    except CommandError as error:
        if "not found" not in str(error):
            raise


def _named(images: Images) -> list[tuple[str, str]]:
    return [("image", images.operator), ("workloadImages.gateway", images.gateway), ("workloadImages.engine", images.engine)]


def _split(image: str) -> list[tuple[str, str]]:
    repository, tag = image.rsplit(":", 1)
    return [("repository", repository), ("tag", tag)]
