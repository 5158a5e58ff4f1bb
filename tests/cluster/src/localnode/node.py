"""A node: control plane, kubelet and everything beneath, in namespaces of its own.

`up` starts what does not run and waits until the node takes pods and DNS answers; `down` leaves nothing. Both may be
called in any state, after a crash too. docs/local-node.md has the whole picture.
"""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from localnode import addons, binaries, certificates, cgroups, controlplane, imagestore, packages, paths
from localnode.buildah import Buildah
from localnode.certificates import Authority
from localnode.commands import run, until
from localnode.daemons import NodeDaemons
from localnode.errors import CommandFailed, HostUnfit, NotReady
from localnode.forwards import Forwards
from localnode.imagestore import ImageStore
from localnode.processes import Process
from localnode.progress import say
from localnode.settings import DNS_IMAGE, NODE_ADDRESS, PAUSE_IMAGE
from localnode.supervisor import Supervisor

FREE_TO_RUN = 2 << 30
NETWORK = f"""
ip link set lo up
ip link add node0 type bridge
ip address add {NODE_ADDRESS}/24 dev node0
ip link set node0 up
ip route add default dev node0
echo 1 > /proc/sys/net/ipv4/ip_forward
if [ -e /proc/sys/net/bridge ]; then echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables; fi
"""


def check_host() -> None:
    """Refuse a machine that cannot carry a node, saying what to change."""
    if os.geteuid() != 0:
        raise HostUnfit("a node needs namespaces, mounts and cgroups: run as root")
    free = shutil.disk_usage(paths.made(paths.cache())).free
    if free < FREE_TO_RUN:
        need = f"{FREE_TO_RUN / 2**30:.0f} GiB under {paths.cache()}, {free / 2**30:.1f} GiB are free"
        raise HostUnfit(f"a node needs {need}: make room or move XDG_CACHE_HOME")


def overlay_works(supervisor: Supervisor, work: Path) -> bool:
    """Whether overlayfs can lie on the cache's filesystem; a container's own overlay usually cannot carry another."""
    trial = f"cd {work} && mkdir -p l u w m && mount -t overlay trial -o lowerdir=l,upperdir=u,workdir=w m && umount m"
    return subprocess.run(supervisor.inside(["sh", "-c", trial]), capture_output=True, check=False).returncode == 0


class Node:
    """One node by name. As a context manager it ends with the block, and with this process if that dies."""

    def __init__(self, name: str = "bw") -> None:
        self.name = name
        self.state = paths.node_state(name)
        self.supervisor = Supervisor(self.state)
        self.authority = Authority(self.state / "pki")
        self.daemons = NodeDaemons(name, self.state / "etc", self.authority)
        self.forwards = Forwards(name)
        self.kubeconfig = self.state / "kubeconfig"

    def up(self, owner: int | None = None) -> Path:
        """Start what does not run, wait until ready, return the kubeconfig's path."""
        check_host()
        packages.ensure(packages.NODE)
        binaries.ensure()
        begun = time.monotonic()
        with paths.only_one(self.name):
            if self.supervisor.process is None or not (self.state / "founded").exists():
                self._remove()
                self._found(owner)
            self._start()
            self._wait()
        say(f"node {self.name} is ready after {time.monotonic() - begun:.1f} s: KUBECONFIG={self.kubeconfig}")
        return self.kubeconfig

    def _found(self, owner: int | None) -> None:
        """Namespaces, network, certificates, configuration, a tidy image store: everything that happens once."""
        for name in ("lib", "log", "etc/cni"):
            paths.made(self.state / name)
        self.state.chmod(0o700)
        groups = cgroups.create(self.name)

        def anchor(store: Path) -> Process:
            binds = {"/var/lib": self.state / "lib", "/var/log": self.state / "log", "/var/lib/containerd": store}
            options = [f"--bind={target}={source}" for target, source in binds.items()]
            return self.supervisor.start(
                f"--hostname={self.name}", *options, *(f"--cgroup={file}" for file in groups), owner=owner
            )

        store = imagestore.claim(anchor)
        if not overlay_works(self.supervisor, paths.made(store / "work")):
            say("overlayfs does not work on the cache's filesystem: images are copied whole, slowly")
            (store / "snapshotter").write_text("native")
        self.supervisor.run("sh", "-ec", NETWORK)
        controlplane.prepare(self.authority, (NODE_ADDRESS,))
        self.authority.sign(certificates.node_subject(self.name), (self.name,), (NODE_ADDRESS,))
        self.daemons.configure(imagestore.snapshotter(store))
        for daemon in self.daemons.control_plane():
            self.supervisor.run_daemon(daemon)
        self._containerd(bare=True)
        imagestore.clear_containers(self.supervisor)
        self.supervisor.stop_daemon("containerd-bare")
        (self.state / "founded").write_text(str(store))

    def _containerd(self, *, bare: bool = False) -> None:
        """Start containerd and wait for its socket."""
        self.supervisor.run_daemon(self.daemons.containerd(bare=bare))
        version = self.supervisor.inside([*imagestore.CTR, "version"])
        until(lambda: subprocess.run(version, capture_output=True, check=False).returncode == 0, "containerd", 30)

    def _start(self) -> None:
        """Start the daemons in the order they need each other."""
        for daemon in self.daemons.control_plane():
            self.supervisor.run_daemon(daemon)
        self._containerd()
        self.images.load_program(PAUSE_IMAGE, Path(binaries.program("pause")))
        self.images.load_program(DNS_IMAGE, Path(binaries.program("coredns")))
        server = f"https://127.0.0.1:{self.forward(0, NODE_ADDRESS, 6443, purpose='apiserver')}"
        controlplane.wait_ready(server, self.authority, self.supervisor.log("kube-apiserver"))
        self.kubeconfig.write_text(self.authority.kubeconfig(certificates.ADMIN, server))
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(addons.manifests()))
        for daemon in self.daemons.clients():
            self.supervisor.run_daemon(daemon)

    def _wait(self) -> None:
        """Until the node takes pods, filters them, and DNS answers."""
        wait = ("wait", "--timeout=90s")
        self.kubectl(*wait, "--for=create", f"node/{self.name}")
        self.supervisor.run_daemon(self.daemons.firewall())
        self.kubectl(*wait, "--for=condition=Ready", f"node/{self.name}")
        self.kubectl(*wait, "--for=condition=Available", "--namespace=kube-system", "deployment/coredns")
        wanted = {daemon.name for daemon in (*self.daemons.control_plane(), *self.daemons.clients(), self.daemons.firewall())}
        for name in sorted(wanted - set(self.supervisor.running())):
            raise NotReady(f"{name} ended right after its start: see {self.supervisor.log(name)}")

    def down(self) -> None:
        """End the node and remove what it made."""
        with paths.only_one(self.name):
            self._remove()

    def _remove(self) -> None:
        """The anchor's end takes processes, mounts, links and rules with it; cgroups and files are left to do."""
        self.forwards.close_all()
        anchor = self.supervisor.process
        if anchor is not None:
            anchor.kill()
        if os.geteuid() == 0:
            for pid in cgroups.members(self.name):
                process = Process.of(pid)
                if process is not None:
                    process.kill()
            cgroups.remove(self.name)
        shutil.rmtree(self.state, ignore_errors=True)

    def status(self) -> dict[str, Any]:
        """What runs, for people and scripts."""
        return {
            "name": self.name,
            "running": self.supervisor.process is not None,
            "daemons": self.supervisor.running(),
            "kubeconfig": str(self.kubeconfig) if self.kubeconfig.exists() else None,
            "store": (self.state / "founded").read_text() if (self.state / "founded").exists() else None,
        }

    @property
    def images(self) -> ImageStore:
        """The node's images."""
        if not (self.state / "founded").exists():
            raise CommandFailed(f"node {self.name} does not run: start it with `python -m localnode up --name {self.name}`")
        return ImageStore(self.supervisor, Path((self.state / "founded").read_text()))

    def load(self, *tags: str) -> None:
        """Bring images built by buildah into the node."""
        for tag in tags:
            self.images.load(tag, Buildah().storage)

    def forward(self, host_port: int, target: str, port: int, purpose: str = "") -> int:
        """Listen on 127.0.0.1:host_port (0: any, the same again next time) for target:port inside; return the port."""
        anchor = self.supervisor.process
        if anchor is None:
            raise CommandFailed(f"node {self.name} does not run: start it with `python -m localnode up --name {self.name}`")
        return self.forwards.open(purpose or f"{target}-{port}", anchor, target, port, host_port)

    def kubectl_command(self, *argv: str) -> list[str]:
        """The command line of kubectl against this node."""
        return [binaries.program("kubectl"), f"--kubeconfig={self.kubeconfig}", *argv]

    def kubectl(self, *argv: str, stdin: str | None = None) -> str:
        """Run kubectl against this node to its end."""
        return run(self.kubectl_command(*argv), stdin=stdin)

    def __enter__(self) -> Self:
        self.up(owner=os.getpid())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.down()
