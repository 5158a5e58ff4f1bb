"""What a machine looks like from outside the node: network namespaces, mounts, firewall rules, processes.

Taken before and after, the difference is what a demo or a test has left behind.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FIREWALLS: Final = (("iptables-save",), ("ip6tables-save",), ("nft", "list", "ruleset"))


@dataclass(frozen=True)
class Traces:
    """One look at the machine."""

    namespaces: frozenset[str]
    mounts: frozenset[str]
    rules: frozenset[str]
    processes: frozenset[str]

    def left_since(self, before: Traces) -> dict[str, set[str]]:
        """What is here now and was not before, by kind; empty kinds are left out."""
        names = ("namespaces", "mounts", "rules", "processes")
        kinds = {name: set(getattr(self, name) - getattr(before, name)) for name in names}
        return {name: found for name, found in kinds.items() if found}


def take() -> Traces:
    """The machine as it is now."""
    return Traces(
        namespaces=frozenset(_output("ip", "netns", "list").splitlines()),
        mounts=frozenset(Path("/proc/self/mounts").read_text().splitlines()),
        rules=frozenset(rule for command in _FIREWALLS for rule in _rules(_output(*command))),
        processes=frozenset(_processes()),
    )


def _rules(saved: str) -> set[str]:
    """Rules and chains without their counters and comments."""
    lines = (re.sub(r"\[\d+:\d+\]|packets \d+ bytes \d+", "", line).strip() for line in saved.splitlines())
    return {line for line in lines if line and not line.startswith("#")}


def _processes() -> set[str]:
    """PID, start time and command line of every process but kernel threads."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            started = (entry / "stat").read_text().rsplit(")", 1)[1].split()[19]
        except OSError:
            continue
        if command:
            found.add(f"{entry.name}@{started} {command}")
    return found


def _output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
