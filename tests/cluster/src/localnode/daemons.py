"""The daemons of a node: their configuration files and command lines."""

import json
from dataclasses import dataclass
from pathlib import Path

from localnode import binaries, certificates, controlplane, settings
from localnode.certificates import Authority
from localnode.controlplane import Endpoint
from localnode.settings import NODE_ADDRESS, SERVICE_RANGE, Places
from localnode.supervisor import Daemon

CONTAINERD = "/usr/bin/containerd"


@dataclass(frozen=True)
class NodeDaemons:
    """What runs on the node called `name`, with its files under `etc`."""

    name: str
    etc: Path
    authority: Authority

    @property
    def places(self) -> Places:
        """Paths the configuration files name."""
        return Places(str(self.authority.directory), str(binaries.directory(binaries.PLUGINS)), str(self.etc / "cni"))

    def configure(self, snapshotter: str) -> None:
        """Write every configuration file and kubeconfig."""
        for name, subject in {
            "kubelet": certificates.node_subject(self.name),
            "controller-manager": certificates.CONTROLLER,
            "scheduler": certificates.SCHEDULER,
            "kube-proxy": certificates.PROXY,
            "kube-router": certificates.ROUTER,
        }.items():
            Path(self.kubeconfig(name)).write_text(self.authority.kubeconfig(subject, Endpoint().server))
        documents = {
            "kubelet.json": settings.kubelet(self.places, self.name),
            "kube-proxy.json": settings.kube_proxy(self.kubeconfig("kube-proxy")),
            "scheduler.json": settings.scheduler(self.kubeconfig("scheduler")),
            "cni/10-blockwarden.conflist": settings.cni(),
        }
        for name, document in documents.items():
            (self.etc / name).write_text(json.dumps(document, indent=1))
        for name, cri in (("containerd.toml", True), ("containerd-bare.toml", False)):
            (self.etc / name).write_text(settings.containerd(self.places, snapshotter=snapshotter, cri=cri))

    def kubeconfig(self, name: str) -> str:
        """Path of a daemon's kubeconfig."""
        return str(self.etc / f"{name}.kubeconfig")

    def containerd(self, *, bare: bool = False) -> Daemon:
        """containerd; bare, without CRI, it only serves to tidy the metadata and goes under another name."""
        name = "containerd-bare" if bare else "containerd"
        return Daemon(name, (CONTAINERD, "--config", str(self.etc / f"{name}.toml")))

    def control_plane(self) -> list[Daemon]:
        """etcd and the apiserver, which the others wait for."""
        return [
            controlplane.etcd(binaries.program("etcd"), "/var/lib/etcd", Endpoint()),
            controlplane.apiserver(binaries.program("kube-apiserver"), self.authority, Endpoint()),
        ]

    def clients(self) -> list[Daemon]:
        """Everything that works through the apiserver."""
        manager = binaries.program("kube-controller-manager")
        return [
            Daemon("kubelet", self._kubelet()),
            controlplane.controller_manager(manager, self.authority, self.kubeconfig("controller-manager")),
            Daemon(
                "kube-scheduler", (binaries.program("kube-scheduler"), f"--config={self.etc}/scheduler.json", "--secure-port=0")
            ),
            Daemon(
                "kube-proxy",
                (binaries.program("kube-proxy"), f"--config={self.etc}/kube-proxy.json", f"--hostname-override={self.name}"),
            ),
        ]

    def firewall(self) -> Daemon:
        """kube-router, which gives up when its node is not registered yet."""
        return Daemon(
            "kube-router", self._kube_router(), {"KUBE_ROUTER_CNI_CONF_FILE": f"{self.etc}/cni/10-blockwarden.conflist"}
        )

    def _kubelet(self) -> tuple[str, ...]:
        """kubelet, which tells the apiserver the address to reach it at."""
        return (
            binaries.program("kubelet"),
            f"--config={self.etc}/kubelet.json",
            f"--kubeconfig={self.kubeconfig('kubelet')}",
            f"--hostname-override={self.name}",
            f"--node-ip={NODE_ADDRESS}",
            f"--tls-cert-file={self.authority.path('kubelet.crt')}",
            f"--tls-private-key-file={self.authority.path('kubelet.key')}",
        )

    def _kube_router(self) -> tuple[str, ...]:
        """kube-router as a firewall only: pods are routed by the bridge and Services served by kube-proxy."""
        return (
            binaries.program("kube-router"),
            "--run-firewall=true",
            "--run-router=false",
            "--run-service-proxy=false",
            f"--kubeconfig={self.kubeconfig('kube-router')}",
            f"--hostname-override={self.name}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--health-port=0",
        )
