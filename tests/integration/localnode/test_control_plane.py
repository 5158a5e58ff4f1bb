"""The control plane alone: a real apiserver with a garbage collector, for tests that need no node."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from localnode import binaries, paths, processes
from localnode.commands import run, until
from localnode.controlplane import ControlPlane, Programs
from localnode.errors import HostUnfit

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with ControlPlane("selftest-plane") as running:
        yield running


def kubectl(plane: ControlPlane, *argv: str, stdin: str | None = None) -> str:
    return run([Programs.resolve().kubectl, f"--kubeconfig={plane.kubeconfig}", *argv], stdin=stdin)


def config_map(name: str, owner: dict[str, str] | None = None) -> str:
    metadata = {"name": name, **({"ownerReferences": [owner]} if owner else {})}
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})


def test_owned_objects_go_with_their_owner(plane: ControlPlane) -> None:
    until(lambda: "default" in kubectl(plane, "get", "namespaces", "-o", "name"), "the default namespace", 20)
    owner = json.loads(kubectl(plane, "create", "-o", "json", "-f", "-", stdin=config_map("owner")))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    kubectl(plane, "create", "-f", "-", stdin=config_map("owned", reference))
    kubectl(plane, "delete", "configmap", "owner", "--cascade=background")
    until(lambda: "owned" not in kubectl(plane, "get", "configmaps", "-o", "name"), "garbage collection", 30)


def test_everything_listens_on_loopback_only(plane: ControlPlane) -> None:
    listening = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    mine = [line for line in listening.splitlines() if '"etcd"' in line or '"kube-apiserver"' in line]
    assert mine
    assert all(line.split()[3].startswith("127.0.0.1:") for line in mine if str(os.getpid()) not in line)


def test_a_killed_parent_takes_the_control_plane_along() -> None:
    name = "selftest-killed"
    block = f"with ControlPlane({name!r}):\n  print('up', flush=True)\n  time.sleep(600)"
    code = f"import time\nfrom localnode.controlplane import ControlPlane\n{block}"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        pids = list(ControlPlane(name).supervisor.ask(op="list")["daemons"].values())
        parent.kill()
    assert len(pids) == 3
    deadline = time.monotonic() + 10
    while any(processes.Process.of(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(processes.Process.of(pid) for pid in pids)
    ControlPlane(name).down()
    assert not paths.node_state(name).exists()


def test_given_assets_are_used_and_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set without a controller-manager, as envtest ships it, makes a control plane without one."""
    binaries.ensure(binaries.CONTROL_PLANE)
    for name in ("etcd", "kube-apiserver", "kubectl"):
        (tmp_path / name).symlink_to(binaries.program(name))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    monkeypatch.setattr(binaries, "ensure", lambda *_: pytest.fail("nothing must be built"))
    with ControlPlane("selftest-assets") as plane:
        assert set(plane.supervisor.running()) == {"etcd", "kube-apiserver"}
    (tmp_path / "etcd").unlink()
    with pytest.raises(HostUnfit, match="has no etcd"):
        Programs.resolve()
