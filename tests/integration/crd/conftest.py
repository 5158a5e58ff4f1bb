"""A real kube-apiserver that serves the committed CRD, and a namespace for each test."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config

from blockwarden_operator.render.names import GROUP, PLURAL, VERSION
from localnode.commands import until
from localnode.controlplane import ControlPlane, Programs

ROOT = Path(__file__).parents[3]
CRD_FILE = ROOT / "crds/tenantpolicies.blockwarden.dev.yaml"
LAX_GROUP = "lax.blockwarden.dev"
Manifest = dict[str, Any]


@dataclass
class Refused(Exception):
    """What the apiserver said: its whole text, and its causes as (field, message)."""

    text: str
    causes: tuple[tuple[str, str], ...]


@dataclass
class Cluster:
    """TenantPolicies of one namespace, and kubectl."""

    kubeconfig: Path
    kubectl_program: str
    namespace: str
    api: client.CustomObjectsApi = field(repr=False)
    group: str = GROUP

    def create(self, manifest: Manifest, *, dry_run: bool = False, strict: bool = False) -> Manifest:
        options = {"dry_run": "All"} if dry_run else {}
        validation = "Strict" if strict else "Ignore"
        return self._call(self.api.create_namespaced_custom_object, body=manifest, field_validation=validation, **options)

    def replace(self, manifest: Manifest) -> Manifest:
        return self._call(self.api.replace_namespaced_custom_object, name=manifest["metadata"]["name"], body=manifest)

    def replace_status(self, manifest: Manifest) -> Manifest:
        return self._call(self.api.replace_namespaced_custom_object_status, name=manifest["metadata"]["name"], body=manifest)

    def get(self, name: str) -> Manifest:
        return self._call(self.api.get_namespaced_custom_object, name=name)

    def is_served(self) -> bool:
        """Whether the apiserver serves the kind yet."""
        try:
            self.api.list_namespaced_custom_object(group=self.group, version=VERSION, namespace=self.namespace, plural=PLURAL)
        except client.ApiException as error:
            if error.status != 404:
                raise
            return False
        return True

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """The output of a kubectl command in the namespace; its error text is an assertion failure."""
        argv = (self.kubectl_program, "--kubeconfig", str(self.kubeconfig), "-n", self.namespace, *arguments)
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _call(self, method: Any, **arguments: Any) -> Manifest:
        try:
            found = method(group=self.group, version=VERSION, namespace=self.namespace, plural=PLURAL, **arguments)
        except client.ApiException as error:
            status = json.loads(error.body)
            causes = (status.get("details") or {}).get("causes") or ()
            raise Refused(status["message"], tuple((c.get("field", ""), c["message"]) for c in causes)) from None
        return dict(found)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    with ControlPlane("test-crd") as running:
        yield running


@pytest.fixture(scope="session")
def server(control_plane: ControlPlane) -> Iterator[Cluster]:
    config.load_kube_config(str(control_plane.kubeconfig))
    with client.ApiClient() as connection:
        cluster = Cluster(control_plane.kubeconfig, Programs.resolve().kubectl, "default", client.CustomObjectsApi(connection))
        _serve(cluster, CRD_FILE.read_text())
        yield cluster


@pytest.fixture(scope="session")
def lax(server: Cluster) -> Cluster:
    """The broken twin: the same API under another group, with every CEL rule taken out."""
    crd = yaml.safe_load(CRD_FILE.read_text())
    crd["metadata"]["name"], crd["spec"]["group"] = f"{PLURAL}.{LAX_GROUP}", LAX_GROUP
    crd["spec"]["names"].update(shortNames=["lax"], categories=[])
    cluster = Cluster(server.kubeconfig, server.kubectl_program, "default", server.api, LAX_GROUP)
    _serve(cluster, yaml.safe_dump(_without_rules(crd)))
    return cluster


def _serve(cluster: Cluster, crd: str) -> None:
    """Applies a CRD and waits until its objects are served. `kubectl wait` is no help: it fails where there is no condition."""
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=crd)
    until(cluster.is_served, f"TenantPolicies of {cluster.group} to be served", timeout=30)


def _without_rules(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_rules(value) for key, value in node.items() if key != "x-kubernetes-validations"}
    return [_without_rules(value) for value in node] if isinstance(node, list) else node


_numbers = itertools.count()


@pytest.fixture
def cluster(server: Cluster) -> Cluster:
    """The server, with a namespace of the test's own."""
    namespace = f"t{next(_numbers)}"
    server.kubectl("create", "namespace", namespace)
    return Cluster(server.kubeconfig, server.kubectl_program, namespace, server.api)


@pytest.fixture(scope="session")
def refused() -> type[Refused]:
    """The error by which the cluster fixture says that the apiserver refused."""
    return Refused


@pytest.fixture
def minimal() -> Manifest:
    """A small policy that the apiserver takes."""
    manifest: Manifest = yaml.safe_load((ROOT / "examples/tenantpolicy-minimal.yaml").read_text())
    return manifest
