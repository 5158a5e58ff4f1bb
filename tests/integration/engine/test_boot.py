"""An engine proves at start, with a request of its own, that blocks come back zero; one that cannot does not serve."""

from __future__ import annotations

from typing import Any

import pytest

from blockwarden_engine.boot_test import NAME

FORGETFUL = """
from blockwarden_engine.ledger import Ledger
order = Ledger.order_scrub
def forget(self):
    self.dirty.clear()
    return 0, []
Ledger.order_scrub = forget
"""
IDLE = "from blockwarden_engine.scrubber import HostMemory; HostMemory.zero = lambda self, ids: None"


@pytest.mark.parametrize("kind", ["engine", "sync_engine"])
def test_an_engine_that_serves_has_proven_itself_and_left_no_trace(kind: str, request: pytest.FixtureRequest) -> None:
    engine = request.getfixturevalue(kind)
    report = engine.report()
    assert report.counters["boot_test_blocks"] >= 2
    assert NAME not in {tenant.name for tenant in report.tenants}
    assert engine.core("result = [len(scheduler.fairness._flows), len(scheduler._applied.tenants)]") == [4, 4]
    assert NAME not in engine.internal("/metrics").body.decode()


@pytest.mark.parametrize(
    ("twin", "sentence"),
    [
        (IDLE, "was scrubbed, acknowledged and read back as not zero on rank 0: the engine does not start"),
        (FORGETFUL, "of the boot self-test was freed and never scrubbed: the engine does not start"),
    ],
    ids=["zeroes nothing", "orders nothing"],
)
def test_an_engine_whose_blocks_do_not_come_back_zero_does_not_start(engines: Any, twin: str, sentence: str) -> None:
    engine = engines.make(twin=twin)
    with pytest.raises(AssertionError, match="the engine ended"):
        engine.start()
    assert engine.process.returncode not in (0, None)
    assert sentence in engine.log.read_text()
    engines.stop()
