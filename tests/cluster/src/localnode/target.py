"""Which cluster the demo and the tests use, and how images get there.

| environment | cluster | images |
| --- | --- | --- |
| KUBECONFIG, KIND_CLUSTER | the kind cluster | `kind load image-archive` |
| KUBECONFIG, IMAGE_REGISTRY | that cluster | pushed to the registry, named by it |
| KUBECONFIG alone, of another cluster | refused: nobody knows how images get there | |
| none of them, or KUBECONFIG alone, of any local node | the local node asked for, started | imported into its containerd |
"""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from localnode import binaries, paths
from localnode.buildah import Buildah
from localnode.commands import run
from localnode.errors import TargetUnclear
from localnode.node import Node


class Target(Protocol):
    """A cluster, ready to use."""

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig to use."""

    def load(self, tag: str) -> str:
        """Bring a locally built image to the cluster; return the name pods must use for it."""


@dataclass(frozen=True)
class LocalTarget:
    """The local node."""

    node: Node

    @property
    def kubeconfig(self) -> Path:
        """The node's kubeconfig."""
        return self.node.kubeconfig

    def load(self, tag: str) -> str:
        """Import into the node's containerd."""
        self.node.load(tag)
        return tag


@dataclass(frozen=True)
class KindTarget:
    """A kind cluster."""

    kubeconfig: Path
    cluster: str

    def load(self, tag: str) -> str:
        """Through an archive, as kind wants it."""
        with tempfile.TemporaryDirectory() as directory:
            archive = Path(directory) / "image.tar"
            Buildah().archive(tag, archive)
            run(["kind", "load", "image-archive", str(archive), "--name", self.cluster])
        return tag


@dataclass(frozen=True)
class RegistryTarget:
    """Any cluster that can pull from a registry we can push to."""

    kubeconfig: Path
    registry: str

    def load(self, tag: str) -> str:
        """Push under the registry's name."""
        name = f"{self.registry.rstrip('/')}/{tag.removeprefix('localhost/')}"
        Buildah().push(tag, name)
        return name


def local_node(name: str, environment: Mapping[str, str] = os.environ) -> Node | None:
    """The local node of that name, if the environment means it: by no kubeconfig, or by that of any local node and nothing else,
    as whoever used one has exported."""
    kubeconfig = environment.get("KUBECONFIG")
    if kubeconfig and (environment.get("KIND_CLUSTER") or environment.get("IMAGE_REGISTRY")):
        return None
    return Node(name) if not kubeconfig or Path(kubeconfig).is_relative_to(paths.nodes()) else None


def resolve(name: str = "bw", environment: Mapping[str, str] = os.environ, owner: int | None = None) -> Target:
    """The target the environment means; the local node is started when it is that."""
    if node := local_node(name, environment):
        node.up(owner=owner)
        return LocalTarget(node)
    kubeconfig = environment["KUBECONFIG"]
    if environment.get("KIND_CLUSTER"):
        return KindTarget(Path(kubeconfig), environment["KIND_CLUSTER"])
    if environment.get("IMAGE_REGISTRY"):
        return RegistryTarget(Path(kubeconfig), environment["IMAGE_REGISTRY"])
    raise TargetUnclear(
        "KUBECONFIG is set: set IMAGE_REGISTRY to push images for it, or KIND_CLUSTER, or unset it for the local node"
    )


def tool(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """Path of kubectl or helm as pinned here, built when missing; KUBECTL or HELM in the environment goes before."""
    given = environment.get(name.upper())
    if given:
        return given
    group = next(group for group in binaries.ALL if name in group.programs)
    binaries.ensure((group,))
    return binaries.program(name)
