"""The node's own cgroup, in every hierarchy the host has: version 1, version 2, or both.

kubelet gets it as its root, the daemons live in a leaf of it. Nothing of the host's own groups is changed, but that
version 2 delegates controllers downwards where they were not yet.
"""

import contextlib
import time
from pathlib import Path

from localnode.errors import HostUnfit

WANTED = ("cpu", "cpuset", "memory", "pids", "io", "hugetlb")
NEEDED = {"cpu", "memory", "pids"}


def hierarchies(mountinfo: str) -> list[Path]:
    """Mount points of all cgroup hierarchies, from the text of /proc/self/mountinfo."""
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] in {"cgroup", "cgroup2"}:
            found.append(Path(before.split(" ")[4]))
    return found


def name_of(node: str) -> str:
    """The cgroup of a node, below each hierarchy's mount."""
    return f"blockwarden-{node}"


def create(node: str) -> list[str]:
    """Make the groups; return the cgroup.procs files a process writes itself into to be in the daemons' leaf."""
    roots = hierarchies(Path("/proc/self/mountinfo").read_text())
    if not roots:
        raise HostUnfit("no cgroup hierarchy is mounted: mount cgroup2 on /sys/fs/cgroup, or run on a host that does")
    return [str(_create_below(root, name_of(node))) for root in roots]


def _create_below(root: Path, name: str) -> Path:
    """The node's group and its daemons' leaf in one hierarchy."""
    group = root / name
    leaf = group / "daemons"
    try:
        group.mkdir(exist_ok=True)
        if (root / "cgroup.controllers").exists():
            _delegate(root)
            _delegate(group)
        _inherit_cpuset(root, group)
        leaf.mkdir(exist_ok=True)
        _inherit_cpuset(group, leaf)
    except OSError as error:
        raise HostUnfit(
            f"cgroups under {root} cannot be made ({error.strerror}): run as root with /sys/fs/cgroup writable"
        ) from None
    return leaf / "cgroup.procs"


def _delegate(group: Path) -> None:
    """Version 2: switch the controllers on for the children; the root refuses while it holds processes in a container."""
    there = set((group / "cgroup.controllers").read_text().split())
    for controller in WANTED:
        if controller in there:
            with contextlib.suppress(OSError):
                (group / "cgroup.subtree_control").write_text(f"+{controller}")
    missing = (NEEDED & there) - set((group / "cgroup.subtree_control").read_text().split())
    if missing:
        raise HostUnfit(
            f"cgroup controllers {sorted(missing)} cannot be delegated below {group}: move its processes into a child group"
        )


def _inherit_cpuset(parent: Path, child: Path) -> None:
    """Version 1: a new cpuset is empty and takes no process until it is filled."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        target = child / name
        if (child / "cpuset.memory_migrate").exists() and not target.read_text().strip():
            target.write_text((parent / name).read_text())


def members(node: str) -> list[int]:
    """PIDs in the node's group and beneath it."""
    found: set[int] = set()
    for root in hierarchies(Path("/proc/self/mountinfo").read_text()):
        for procs in (root / name_of(node)).rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                found.update(int(line) for line in procs.read_text().split())
    return sorted(found)


def remove(node: str, timeout: float = 10) -> None:
    """Remove the groups, deepest first; dying processes may hold one for a moment."""
    deadline = time.monotonic() + timeout
    for root in hierarchies(Path("/proc/self/mountinfo").read_text()):
        group = root / name_of(node)
        while group.exists():
            for path in sorted([*group.rglob("*/"), group], key=lambda p: len(p.parts), reverse=True):
                with contextlib.suppress(OSError):
                    path.rmdir()
            if group.exists() and time.monotonic() > deadline:
                raise HostUnfit(f"cgroup {group} still holds processes: see its cgroup.procs, end them, run down again")
            time.sleep(0.02)
