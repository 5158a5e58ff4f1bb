"""Whatever way a node ends, the host is as it was: namespaces, mounts, links, firewall rules, cgroups, processes."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from localnode import cgroups, paths, processes
from localnode.node import Node

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NAME = "bw-leftovers"


def said(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def host() -> dict[str, object]:
    """What a node must not change on the host. Counters and dates of rules are not part of it."""
    rules = "\n".join(line for line in said("iptables-save").splitlines() if not line.startswith("#"))
    return {
        "netns": said("ip", "netns"),
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "links": re.findall(r"^\d+: (\S+)", said("ip", "-o", "link"), re.MULTILINE),
        "iptables": re.sub(r"\[\d+:\d+\]", "", rules),
        "nftables": re.sub(r"counter packets \d+ bytes \d+", "", said("nft", "list", "ruleset")),
        "directories": [
            Path(path).exists() for path in ("/var/lib/kubelet", "/var/log/pods", "/var/lib/cni", "/run/containerd/s")
        ],
        "listeners": sorted(line.split()[3] for line in said("ss", "-Hltn").splitlines() if "127.0.0.1" not in line),
    }


@pytest.fixture
def before() -> Iterator[dict[str, object]]:
    Node(NAME).down()
    yield host()
    Node(NAME).down()


def relatives() -> list[str]:
    """Command lines of the host's processes that belong to the node, by its paths or its cgroup."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            group = (entry / "cgroup").read_text()
        except OSError:
            continue
        if str(paths.node_state(NAME)) in command or cgroups.name_of(NAME) in group:
            found.append(command)
    return found


def gone(pids: list[int]) -> bool:
    return all(processes.Process.of(pid) is None for pid in pids)


def assert_as_before(before: dict[str, object]) -> None:
    assert host() == before
    deadline = time.monotonic() + 10
    while relatives() and time.monotonic() < deadline:
        time.sleep(0.1)  # a corpse stays until the host's first process buries it
    assert relatives() == []
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{cgroups.name_of(NAME)}"))
    assert not paths.node_state(NAME).exists()


def test_down_leaves_the_host_as_it_was(before: dict[str, object]) -> None:
    node = Node(NAME)
    node.up()
    inside = cgroups.members(NAME)
    assert len(inside) > 10, "control plane, kubelet, containerd, its shims and pods"
    assert host()["listeners"] == before["listeners"], "nothing listens on the host but on loopback"
    node.down()
    assert gone(inside)
    assert_as_before(before)
    node.down()


def test_down_after_everything_was_killed(before: dict[str, object]) -> None:
    node = Node(NAME)
    node.up()
    for pid in cgroups.members(NAME):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    node.down()
    assert_as_before(before)


def test_a_killed_parent_takes_the_node_along(before: dict[str, object]) -> None:
    """The tests' own way of using a node: no end of theirs may leave one running."""
    script = f"from localnode.node import Node\nimport time\nwith Node({NAME!r}):\n  print('up', flush=True)\n  time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        inside = cgroups.members(NAME)
        parent.kill()
    deadline = time.monotonic() + 10
    while not gone(inside) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert gone(inside)
    Node(NAME).down()
    assert_as_before(before)
