"""Issue point 1, its last line: `make demo-down` leaves the machine as it was. Alphabetically last, since it ends the product."""

from __future__ import annotations

import os

import pytest

from stack import demo, traces
from stack.kubectl import Timeout, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def mine(processes: set[str]) -> set[str]:
    """Processes but this test run's own."""
    return {entry for entry in processes if int(entry.split("@")[0]) != os.getpid()}


def test_down_leaves_no_trace(product) -> None:
    running = traces.take().left_since(product.before)
    assert running.get("processes"), "the control: while it runs, the difference is seen"
    demo.down("bw-e2e")

    def left() -> dict[str, set[str]]:
        found = traces.take().left_since(product.before)
        found["processes"] = mine(found.get("processes", set()))
        return {kind: entries for kind, entries in found.items() if entries}

    try:
        wait_for("a clean machine", lambda: not left() or None, timeout=20)
    except Timeout:
        assert left() == {}
