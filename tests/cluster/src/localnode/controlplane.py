"""The control plane: etcd, kube-apiserver, kube-controller-manager, and on a node kube-scheduler.

Two ways of running it. On a node it lies in the node's namespaces, on the usual ports. Alone (`ControlPlane`) it
listens on free ports of loopback and needs no root: enough for tests of CRDs, admission, ownership and garbage
collection. KUBEBUILDER_ASSETS, where set, gives the programs of that second way; nothing is built then.
"""

import os
import shutil
import socket
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext, create_default_context
from types import TracebackType
from typing import Self

from localnode import binaries, certificates, packages, paths
from localnode.certificates import Authority, Subject
from localnode.commands import until
from localnode.errors import HostUnfit, NotReady
from localnode.settings import API_SERVICE, NODE_ADDRESS, POD_RANGE, SERVICE_RANGE
from localnode.supervisor import Daemon, Supervisor

SERVER = Subject("apiserver", "kube-apiserver")


@dataclass(frozen=True)
class Programs:
    """Where the control plane's programs are; a missing controller-manager is an empty string."""

    etcd: str
    apiserver: str
    controller_manager: str
    kubectl: str

    @classmethod
    def resolve(cls) -> "Programs":
        """KUBEBUILDER_ASSETS when set, else what binaries.py builds."""
        assets = os.environ.get("KUBEBUILDER_ASSETS")
        if not assets:
            binaries.ensure(binaries.CONTROL_PLANE)
            names = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
            return cls(*(binaries.program(name) for name in names))
        lacking = [name for name in ("etcd", "kube-apiserver", "kubectl") if not (Path(assets) / name).exists()]
        if lacking:
            raise HostUnfit(f"KUBEBUILDER_ASSETS={assets} has no {', '.join(lacking)}: unset it, or point it at a full set")
        manager = Path(assets) / "kube-controller-manager"
        return cls(f"{assets}/etcd", f"{assets}/kube-apiserver", str(manager) if manager.exists() else "", f"{assets}/kubectl")


@dataclass(frozen=True)
class Endpoint:
    """Where the parts listen."""

    address: str = NODE_ADDRESS
    api: int = 6443
    etcd: int = 2379
    peer: int = 2380

    @property
    def server(self) -> str:
        """The apiserver's URL."""
        return f"https://{self.address}:{self.api}"


def etcd(program: str, data: str, at: Endpoint) -> Daemon:
    """etcd on loopback, without fsync: its data never outlive a start."""
    client, peer = f"http://127.0.0.1:{at.etcd}", f"http://127.0.0.1:{at.peer}"
    flags = {
        "data-dir": data,
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
        "unsafe-no-fsync": "true",
    }
    return Daemon("etcd", (program, *(f"--{key}={value}" for key, value in flags.items())))


def apiserver(program: str, authority: Authority, at: Endpoint) -> Daemon:
    """kube-apiserver. kubelets are reached by address, since the node's name is in no DNS."""
    path = authority.path
    flags = {
        "etcd-servers": f"http://127.0.0.1:{at.etcd}",
        "bind-address": at.address,
        "advertise-address": at.address,
        "endpoint-reconciler-type": "none" if at.address.startswith("127.") else "lease",
        "secure-port": str(at.api),
        "tls-cert-file": path(f"{SERVER.file}.crt"),
        "tls-private-key-file": path(f"{SERVER.file}.key"),
        "client-ca-file": path("ca.crt"),
        "service-account-key-file": path("sa.key"),
        "service-account-signing-key-file": path("sa.key"),
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "service-cluster-ip-range": SERVICE_RANGE,
        "authorization-mode": "Node,RBAC",
        "allow-privileged": "true",
        "enable-admission-plugins": "NodeRestriction",
        "kubelet-client-certificate": path(f"{certificates.KUBELET_CLIENT.file}.crt"),
        "kubelet-client-key": path(f"{certificates.KUBELET_CLIENT.file}.key"),
        "kubelet-preferred-address-types": "InternalIP",
        "watch-cache": "true",
        "profiling": "false",
    }
    return Daemon("kube-apiserver", (program, *(f"--{key}={value}" for key, value in flags.items())))


def controller_manager(program: str, authority: Authority, kubeconfig: str) -> Daemon:
    """kube-controller-manager, with a client fast enough that its loops never wait for their own rate limit."""
    flags = {
        "kubeconfig": kubeconfig,
        "use-service-account-credentials": "true",
        "service-account-private-key-file": authority.path("sa.key"),
        "root-ca-file": authority.path("ca.crt"),
        "cluster-signing-cert-file": authority.path("ca.crt"),
        "cluster-signing-key-file": authority.path("ca.key"),
        "allocate-node-cidrs": "true",
        "cluster-cidr": POD_RANGE,
        "service-cluster-ip-range": SERVICE_RANGE,
        "leader-elect": "false",
        "secure-port": "0",
        "kube-api-qps": "200",
        "kube-api-burst": "400",
        "node-monitor-period": "1s",
    }
    return Daemon("kube-controller-manager", (program, *(f"--{key}={value}" for key, value in flags.items())))


def prepare(authority: Authority, addresses: tuple[str, ...]) -> None:
    """The certificates the apiserver starts with."""
    authority.create()
    authority.sign(SERVER, certificates.SERVICE_NAMES, tuple(dict.fromkeys((*addresses, "127.0.0.1", API_SERVICE))))
    authority.sign(certificates.KUBELET_CLIENT)


def answers(url: str, trust: SSLContext) -> bool:
    """Whether a health endpoint says 200."""
    try:
        with urllib.request.urlopen(url, timeout=2, context=trust) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def wait_ready(server: str, authority: Authority, log: Path, timeout: float = 60) -> None:
    """Until /readyz answers; the error names the log to read."""
    trust = create_default_context(cafile=authority.path("ca.crt"))
    until(lambda: answers(f"{server}/readyz", trust), f"kube-apiserver (its log: {log})", timeout)


def free_ports(count: int) -> list[int]:
    """Loopback ports nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


class ControlPlane:
    """A control plane alone, on loopback. As a context manager it ends with the block, and with the process if that dies."""

    def __init__(self, name: str = "control-plane") -> None:
        self.name = name
        self.supervisor = Supervisor(paths.node_state(name), plain=True)
        self.authority = Authority(self.state / "pki")
        self.kubeconfig = self.state / "kubeconfig"

    @property
    def state(self) -> Path:
        """Everything of this control plane."""
        return self.supervisor.state

    def up(self, owner: int | None = None) -> Path:
        """Start and wait until ready; return the kubeconfig's path. A living one is left as it is."""
        if shutil.which("openssl") is None:
            packages.ensure({"openssl": "openssl"})
        programs = Programs.resolve()
        with paths.only_one(self.name):
            if not self._alive():
                self._remove()
                paths.made(self.state).chmod(0o700)
                at = Endpoint("127.0.0.1", *free_ports(3))
                prepare(self.authority, (at.address,))
                self.supervisor.start(owner=owner)
                self._start(programs, at)
        return self.kubeconfig

    def _alive(self) -> bool:
        """Whether what a client needs runs."""
        started = self.supervisor.process is not None and self.kubeconfig.exists()
        return started and set(self.supervisor.running()) >= {"etcd", "kube-apiserver"}

    def _start(self, programs: Programs, at: Endpoint) -> None:
        """The daemons, then the admin's kubeconfig as the sign that all is ready."""
        start = self.supervisor.run_daemon
        start(etcd(programs.etcd, str(self.state / "etcd"), at))
        start(apiserver(programs.apiserver, self.authority, at))
        wait_ready(at.server, self.authority, self.supervisor.log("kube-apiserver"))
        if programs.controller_manager:
            config = self.state / "controller-manager.kubeconfig"
            config.write_text(self.authority.kubeconfig(certificates.CONTROLLER, at.server))
            start(controller_manager(programs.controller_manager, self.authority, str(config)))
        if "kube-apiserver" not in self.supervisor.running():
            raise NotReady(f"kube-apiserver ended: see {self.supervisor.log('kube-apiserver')}")
        self.kubeconfig.write_text(self.authority.kubeconfig(certificates.ADMIN, at.server))

    def down(self) -> None:
        """End the daemons and remove the state."""
        with paths.only_one(self.name):
            self._remove()

    def _remove(self) -> None:
        """The daemons die with their anchor."""
        process = self.supervisor.process
        if process is not None:
            process.kill()
        shutil.rmtree(self.state, ignore_errors=True)

    def __enter__(self) -> Self:
        self.up(owner=os.getpid())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.down()
