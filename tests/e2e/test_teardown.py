"""Issue point 1, its last line: `make demo-down` leaves the machine as it was. Alphabetically last, since it ends the product."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stack import demo, traces
from stack.kubectl import Timeout, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NODE, RUN = "bw-e2e", f"BLOCKWARDEN_E2E_RUN={os.getpid()}"


def mine(processes: set[str]) -> set[str]:
    """Those that this run has started, by what they inherited or whom they serve; others are not ours to judge."""
    return {entry for entry in processes if NODE in entry or RUN in environment(int(entry.split("@")[0]))}


def environment(pid: int) -> str:
    """What a process got at its start; nothing for this process itself and for one that is gone."""
    try:
        return "" if pid == os.getpid() else Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def test_down_leaves_no_trace(product) -> None:
    running = mine(traces.take().left_since(product.before)["processes"])
    assert len(running) > 5, "the control: while it runs, the difference is seen"
    demo.down(NODE)

    def left() -> dict[str, set[str]]:
        found = traces.take().left_since(product.before)
        found["processes"] = mine(found.get("processes", set()))
        return {kind: entries for kind, entries in found.items() if entries}

    try:
        wait_for("a clean machine", lambda: not left() or None, timeout=20)
    except Timeout:
        assert left() == {}
