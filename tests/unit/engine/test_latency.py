"""How long freed blocks took to be clean, in steps and seconds."""

from __future__ import annotations

from blockwarden_engine.latency import FreeToClean, Histogram
from blockwarden_engine.ledger import Ledger
from blockwarden_engine.quotas import Quota


def test_a_histogram_counts_each_value_once_and_up_to_its_bound() -> None:
    made = Histogram((1, 2, 4))
    for value, times in ((1, 3), (1.5, 1), (2, 1), (9, 2)):
        made.observe(value, times)
    assert (made.counts, made.total) == ([3, 2, 0, 2], 3 + 1.5 + 2 + 18)


def test_a_block_that_the_next_step_scrubs_took_one_step() -> None:
    latency = FreeToClean()
    latency.look(10.0)
    latency.free()
    latency.look(10.5)
    latency.order(1, 1)
    latency.look(12.0)
    latency.confirm(1)
    assert (latency.steps.counts[0], latency.steps.total, latency.seconds.total) == (1, 1, 2.0)


def test_blocks_that_are_scrubbed_later_or_in_parts_keep_their_own_beginning() -> None:
    latency = FreeToClean()
    for now in (1.0, 2.0):
        latency.look(now)
        latency.free()
        latency.free()
        latency.order(0, 0)  # a step that scrubs nothing
    latency.order(7, 3)
    latency.look(5.0)
    latency.confirm(7)
    assert (latency.steps.total, latency.seconds.total) == (3 + 3 + 2, 4.0 + 4.0 + 3.0)
    latency.order(8, 1)
    latency.confirm(8)
    assert latency.steps.total == 8 + 3


def test_the_ledger_tells_every_block_that_it_cleans() -> None:
    ledger = Ledger(11)
    ledger.apply({"a": Quota(10, 10, 10, 1, 1)})
    blocks = ledger.take(ledger.enter("a", 1, "s"), 4).fresh
    for block in blocks[:3]:
        ledger.release(block, keep=False)
    first, ordered = ledger.order_scrub()
    ledger.release(blocks[3], keep=False)
    ledger.order_scrub()
    assert sum(ledger.latency.steps.counts) == 0, "ordered is not clean"
    ledger.acknowledge(first, len(ordered))
    assert ledger.latency.steps.counts[:2] == [0, 3], "two steps went down before the first was acknowledged"
    assert (ledger.epoch, ledger.acknowledged) == (2, 1)
