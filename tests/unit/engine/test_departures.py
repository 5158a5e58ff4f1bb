"""Who leaves keeps what nobody else is promised, for as long as the policy says and its requests need."""

from __future__ import annotations

import math

from blockwarden_engine.departures import Departures
from blockwarden_engine.ledger import CLEAN, Ledger
from blockwarden_engine.quotas import Quota


def quota(guaranteed: int, limit: int | None = None) -> Quota:
    return Quota(guaranteed, guaranteed if limit is None else limit, 99, 1, 1)


def after(first: dict[str, Quota], second: dict[str, Quota], *, grace: float = 30) -> tuple[Departures, dict[str, Quota]]:
    """Departures when `second` replaces `first` ten seconds later, in a pool of ten blocks."""
    made = Departures()
    assert made.plan(first, pool=10, grace=grace, now=0) == {}
    return made, made.plan(second, pool=10, grace=grace, now=10)


def test_a_tenant_that_leaves_keeps_its_quota_where_nobody_else_is_promised_it() -> None:
    made, kept = after({"a": quota(4, 6), "b": quota(3)}, {"b": quota(3)})
    assert kept == {"a": quota(4, 6)}
    assert made.due == 40


def test_what_the_new_policy_guarantees_comes_first_and_early_leavers_before_late_ones() -> None:
    made, kept = after({"a": quota(4), "b": quota(3), "c": quota(3)}, {"b": quota(8), "c": quota(1)})
    assert kept == {"a": Quota(1, 4, 99, 1, 1)}
    assert made.plan({"c": quota(8)}, pool=10, grace=30, now=11) == {"a": Quota(2, 4, 99, 1, 1), "b": Quota(0, 8, 99, 1, 1)}


def test_the_grace_period_ends_and_may_change_meanwhile() -> None:
    made, _ = after({"a": quota(4)}, {})
    assert "a" in made.plan({}, pool=10, grace=30, now=39.9)
    assert "a" in made.plan({}, pool=10, grace=60, now=40)
    assert made.due == 70
    assert made.plan({}, pool=10, grace=5, now=41) == {}
    assert made.due == math.inf
    assert made.plan({}, pool=10, grace=60, now=42) == {}, "whoever was ended does not come back with a longer grace"


def test_without_grace_nobody_drains() -> None:
    made, kept = after({"a": quota(4)}, {}, grace=0)
    assert (kept, made.due) == ({}, math.inf)


def test_who_comes_back_is_on_its_way_no_more() -> None:
    made, _ = after({"a": quota(4)}, {})
    assert made.plan({"a": quota(2)}, pool=10, grace=30, now=20) == {}
    assert made.due == math.inf


def test_a_draining_tenant_keeps_no_cache_and_returns_its_quota_with_its_last_request() -> None:
    ledger = Ledger(11)
    ledger.apply({"a": quota(4), "b": quota(3, 10)})
    a, b = ledger.enter("a", 1, "s"), ledger.enter("b", 1, "s")
    cached, used = ledger.take(a, 2).fresh
    assert ledger.release(cached, keep=True)
    assert ledger.apply({"b": quota(3, 10)}, {"a": quota(4)}) == [cached], "its cache goes at once"
    assert ledger.allocatable(a) == 3
    assert ledger.allocatable(b) == 10 - 2 - 3, "a's guarantee is still kept for it"
    assert not a.tenant.must_end(1) and a.tenant.is_stale(1)
    assert not ledger.release(used, keep=True)
    ledger.leave(a)
    epoch, blocks = ledger.order_scrub()
    ledger.acknowledge(epoch, len(blocks))
    assert "a" not in ledger.tenants
    assert ledger.allocatable(b) == 10 and {ledger.state(block) for block in range(1, 11)} == {CLEAN}


def test_a_tenant_without_requests_is_gone_at_once() -> None:
    ledger = Ledger(11)
    ledger.apply({"a": quota(4), "b": quota(0, 10)})
    ledger.apply({"b": quota(0, 10)}, {"a": quota(4)})
    assert "a" not in ledger.tenants
    assert ledger.allocatable(ledger.enter("b", 1, "s")) == 10
