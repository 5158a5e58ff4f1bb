"""containerd's store of images: kept in the cache between runs, one at a time to a node.

Consecutive nodes, whatever their names, take the first store no living node holds, so that an image imported once is
there for the next run. Nodes side by side get a store each, because two containerd processes cannot share one; the
second store keeps its images as well.
"""

import contextlib
import fcntl
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from localnode import oci, paths
from localnode.errors import CommandFailed, HostUnfit
from localnode.layers import Storage
from localnode.oci import Blob, Image
from localnode.processes import Process
from localnode.progress import say
from localnode.supervisor import Supervisor

CTR = ("ctr", "--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io")


@contextlib.contextmanager
def stores() -> Iterator[Path]:
    """The directory of all stores, while nobody else takes or removes one."""
    parent = paths.made(paths.cache() / "containerd")
    with (parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield parent


def held(store: Path) -> bool:
    """Whether a living node works on the store."""
    return Process.load(store / "holder.json") is not None


def prune() -> list[Path]:
    """Remove the stores no living node holds; what they held is imported again when it is needed."""
    with stores() as parent:
        idle = [store for store in sorted(parent.iterdir()) if store.is_dir() and not held(store)]
        for store in idle:
            shutil.rmtree(store)
    return idle


def claim(holder: Callable[[Path], Process]) -> Path:
    """Take the first free store; `holder` gets its path and returns the process that will hold it."""
    with stores() as parent:
        store = next(parent / str(n) for n in range(100) if not held(parent / str(n)))
        paths.made(store)
        for stale in ("io.containerd.grpc.v1.cri", "tmpmounts"):
            shutil.rmtree(store / stale, ignore_errors=True)
        holder(store).save(store / "holder.json")
    return store


def clear_containers(node: Supervisor) -> None:
    """Remove the containers an earlier run left in the metadata; containerd runs without its CRI part meanwhile."""
    left = node.run(*CTR, "containers", "list", "--quiet").split()
    for start in range(0, len(left), 50):
        node.run(*CTR, "containers", "delete", *left[start : start + 50])


def snapshotter(store: Path) -> str:
    """What images are unpacked with: overlayfs, unless the node found that it does not work here."""
    chosen = store / "snapshotter"
    return chosen.read_text() if chosen.exists() else "overlayfs"


class ImageStore:
    """The images of a running node."""

    def __init__(self, node: Supervisor, store: Path) -> None:
        self.node = node
        self.store = store
        self.stamps = paths.made(store / "loaded")

    def present(self) -> dict[str, str]:
        """Image names and their manifests' digests."""
        lines = self.node.run(*CTR, "images", "list").splitlines()[1:]
        return {fields[0]: fields[2] for line in lines if len(fields := line.split()) > 2}

    def _content(self) -> set[str]:
        """Digests of all blobs in the content store."""
        return set(self.node.run(*CTR, "content", "list", "--quiet").split())

    def _stamp(self, name: str) -> Path:
        return self.stamps / (name.replace("/", "_").replace(":", "_") + ".json")

    def current(self, name: str, identity: str) -> bool:
        """Whether this very image is loaded under the name: the stamp says so, and the name still means that manifest."""
        try:
            stamp = json.loads(self._stamp(name).read_text())
        except (OSError, ValueError):
            return False
        return bool(stamp["identity"] == identity and self.present().get(name) == stamp["manifest"])

    def put(self, name: str, image: Image, identity: str) -> int:
        """Import the blobs the content store lacks; return how many bytes that were."""
        known = self._content()
        lacking = [blob for blob in image.blobs if blob.digest not in known]
        size = sum(blob.size for blob in lacking)
        self._check_room(size)
        self._import(name, image, lacking)
        self._stamp(name).write_text(json.dumps({"identity": identity, "manifest": image.manifest.digest}))
        return size

    def _import(self, name: str, image: Image, blobs: list[Blob]) -> None:
        """Stream an archive of these blobs into containerd, which unpacks the layers it has not unpacked yet."""
        importing = [*CTR, "images", "import", "--snapshotter", snapshotter(self.store), "-"]
        with self.node.popen(*importing, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                oci.write_archive(process.stdin, name, image.manifest, blobs)
                process.stdin.close()
            said = process.stdout.read().decode(errors="replace")
        if process.returncode != 0:
            raise CommandFailed(f"containerd did not import {name}: {said.strip()[-500:]}")

    def _check_room(self, size: int) -> None:
        """A layer lies here twice, as a blob and unpacked."""
        free = shutil.disk_usage(self.store).free
        if free < 2 * size + (1 << 30):
            need = (2 * size + (1 << 30)) / 2**30
            raise HostUnfit(f"importing needs {need:.1f} GiB under {self.store}, {free / 2**30:.1f} GiB are free: make room")

    def load_program(self, name: str, program: Path) -> None:
        """An image of one static program, such as pause; its identity is the directory's content hash."""
        identity = f"{program.parent.name}/{program.name}"
        if not self.current(name, identity):
            self.put(name, oci.program_image(program), identity)

    def load(self, tag: str, storage: Storage) -> None:
        """Bring an image buildah built into the node, moving only layers that are new."""
        identity = storage.image_id(tag)
        if self.current(tag, identity):
            say(f"{tag} is loaded already")
            return
        begun = time.monotonic()
        carried = self.put(tag, storage.image(identity), identity)
        say(f"{tag} loaded in {time.monotonic() - begun:.1f} s, {carried / 2**20:.0f} MiB moved")
