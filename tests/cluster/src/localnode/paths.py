"""Where things lie. Everything the local node keeps is under one cache directory of the user's.

`bin/<hash>/` binaries by the hash of what they are built from · `containerd/<slot>/` images and snapshots ·
`buildah/` images as built · `nodes/<name>/` a running node's state, removed by `down` · `locks/<name>` held while a node
starts or stops · `ports/<name>.json` the loopback ports of a name, kept so that a kubeconfig stays valid over down and up.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

from localnode.errors import LocalNodeError

PACKAGE = Path(__file__).resolve().parent
TOOLS = PACKAGE.parents[1] / "tools"
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")


def cache() -> Path:
    """The cache directory; XDG_CACHE_HOME moves it."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base).absolute() / "blockwarden"


def made(path: Path) -> Path:
    """The directory, created when missing."""
    path.mkdir(parents=True, exist_ok=True)
    return path


def nodes() -> Path:
    """Where the state of every local node is."""
    return cache() / "nodes"


def node_state(name: str) -> Path:
    """The state directory of a node: a name is part of paths, of a hostname and of a cgroup, so its form is checked."""
    if NAME.fullmatch(name) is None:
        raise LocalNodeError(f"node name {name!r} is not a DNS label of at most 32 characters: choose one like bw-demo")
    return nodes() / name


@contextlib.contextmanager
def only_one(name: str) -> Iterator[None]:
    """Hold a node's name: two starts at once would each take the other's half-made state for a crash's remains."""
    node_state(name)
    with (made(cache() / "locks") / name).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def node_names() -> list[str]:
    """Names with a state directory, running or left over from a crash."""
    parent = nodes()
    return sorted(entry.name for entry in parent.iterdir() if entry.is_dir()) if parent.is_dir() else []
