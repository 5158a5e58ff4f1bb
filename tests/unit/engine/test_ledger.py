"""The ledger's rules one at a time: who may take what, how blocks change hands, what a scrub confirms."""

from __future__ import annotations

import pytest

from blockwarden_engine.domains import Domain
from blockwarden_engine.errors import MismatchedAck, NotOwned, QuotaExceeded, WrongState
from blockwarden_engine.ledger import CACHED, CLEAN, DIRTY, IN_USE, NULL, SCRUBBING, Ledger
from blockwarden_engine.protocol import NOBODY
from blockwarden_engine.quotas import Quota


def quota(guaranteed: int, limit: int | None = None, generation: int = 1, floor: int = 1) -> Quota:
    return Quota(guaranteed, guaranteed if limit is None else limit, 99, generation, floor)


@pytest.fixture
def ledger() -> Ledger:
    """Ten blocks: a has 4, b has 3 and may borrow up to 6, c has none and may borrow up to 3."""
    made = Ledger(11)
    made.apply({"a": quota(4), "b": quota(3, 6), "c": quota(0, 3)})
    return made


def scrub(ledger: Ledger) -> None:
    epoch, blocks = ledger.order_scrub()
    if epoch:
        ledger.acknowledge(epoch, len(blocks))


def cache(ledger: Ledger, domain: Domain, count: int) -> list[int]:
    """Blocks of the domain that are cached, oldest first."""
    blocks = ledger.take(domain, count).fresh
    assert all(ledger.release(block, keep=True) for block in blocks)
    return blocks


def test_a_pool_starts_clean_but_for_the_null_block(ledger: Ledger) -> None:
    assert ledger.clean == ledger.size == 10
    assert ledger.state(0) == NULL
    assert {ledger.state(block) for block in range(1, 11)} == {CLEAN}
    assert {ledger.owner(block) for block in range(11)} == {NOBODY}


def test_one_trust_domain_has_one_owner_and_no_number_comes_twice(ledger: Ledger) -> None:
    first = ledger.enter("a", 1, "s")
    assert ledger.enter("a", 1, "s") is first
    others = [ledger.enter("a", 1, "t"), ledger.enter("a", 2, "s"), ledger.enter("b", 1, "s")]
    assert len({first.owner, *(domain.owner for domain in others)}) == 4
    ledger.leave(first)
    ledger.leave(first)
    assert ledger.enter("a", 1, "s").owner > max(domain.owner for domain in others)


def test_nobody_enters_for_a_tenant_that_the_policy_does_not_have(ledger: Ledger) -> None:
    with pytest.raises(KeyError):
        ledger.enter("z", 1, "s")


def test_a_tenant_takes_up_to_its_limit_and_no_block_more(ledger: Ledger) -> None:
    domain = ledger.enter("a", 1, "s")
    taken = ledger.take(domain, 4)
    assert len(set(taken.fresh)) == 4
    assert taken.recycled == []
    assert {ledger.owner(block) for block in taken.fresh} == {domain.owner}
    assert ledger.allocatable(domain) == 0
    with pytest.raises(QuotaExceeded):
        ledger.take(domain, 1)


@pytest.mark.parametrize("count", [-1, 5])
def test_a_count_that_is_negative_or_too_large_changes_nothing(ledger: Ledger, count: int) -> None:
    domain = ledger.enter("a", 1, "s")
    with pytest.raises(QuotaExceeded):
        ledger.take(domain, count)
    assert ledger.clean == 10
    assert domain.owned == 0


def test_borrowing_stops_where_another_guarantee_begins(ledger: Ledger) -> None:
    borrower, c = ledger.enter("b", 1, "s"), ledger.enter("c", 1, "s")
    assert ledger.allocatable(borrower) == 6
    assert ledger.allocatable(c) == 3
    ledger.take(c, 2)
    assert ledger.allocatable(borrower) == 4  # its own 3, and the 1 that nobody is guaranteed
    ledger.take(borrower, 4)
    assert ledger.allocatable(c) == 0
    assert ledger.allocatable(ledger.enter("a", 1, "s")) == 4


def test_what_is_dirty_is_lent_to_nobody(ledger: Ledger) -> None:
    a, c = ledger.enter("a", 1, "s"), ledger.enter("c", 1, "s")
    for block in ledger.take(a, 4).fresh:
        ledger.release(block, keep=False)
    assert ledger.clean == 6
    assert ledger.allocatable(c) == 0  # 7 are guaranteed to others, 6 are clean
    assert ledger.prospect(c) == 3
    scrub(ledger)
    assert ledger.allocatable(c) == 3


def test_a_released_block_is_clean_only_after_its_scrub_is_acknowledged(ledger: Ledger) -> None:
    domain = ledger.enter("a", 1, "s")
    (block,) = ledger.take(domain, 1).fresh
    assert ledger.release(block, keep=False) is False
    assert ledger.state(block) == DIRTY
    epoch, blocks = ledger.order_scrub()
    assert (epoch, blocks) == (1, [block])
    assert ledger.state(block) == SCRUBBING
    assert ledger.owner(block) == NOBODY
    ledger.acknowledge(1, 1)
    assert ledger.state(block) == CLEAN
    assert ledger.order_scrub() == (0, [])


@pytest.mark.parametrize(("epoch", "count"), [(1, 1), (2, 1), (0, 0), (1, 3)])
def test_an_acknowledgement_must_be_of_the_oldest_order_and_its_count(ledger: Ledger, epoch: int, count: int) -> None:
    domain = ledger.enter("a", 1, "s")
    first, second, third = ledger.take(domain, 3).fresh
    for block in (first, second):
        ledger.release(block, keep=False)
    ledger.order_scrub()
    ledger.release(third, keep=False)
    ledger.order_scrub()
    with pytest.raises(MismatchedAck):
        ledger.acknowledge(epoch, count)
    assert ledger.clean == 7
    ledger.acknowledge(1, 2)
    ledger.acknowledge(2, 1)
    assert ledger.clean == 10


def test_a_cached_block_is_hit_by_its_own_domain_only(ledger: Ledger) -> None:
    alice, bob = ledger.enter("a", 1, "alice"), ledger.enter("a", 1, "bob")
    (block,) = cache(ledger, alice, 1)
    with pytest.raises(NotOwned):
        ledger.hit(bob, block)
    assert ledger.state(block) == CACHED
    ledger.hit(alice, block)
    assert ledger.state(block) == IN_USE
    with pytest.raises(WrongState):
        ledger.hit(alice, block)


def test_a_domain_recycles_its_own_oldest_block_and_no_colleagues(ledger: Ledger) -> None:
    alice, bob = ledger.enter("a", 1, "alice"), ledger.enter("a", 1, "bob")
    ours, theirs = cache(ledger, alice, 2), cache(ledger, bob, 2)
    assert ledger.allocatable(alice) == 2
    assert ledger.take(alice, 1).recycled == [ours[0]]
    ledger.make_room(alice, 2)
    assert [ledger.state(block) for block in theirs] == [DIRTY, CACHED], "more of a colleague's blocks went than needed"
    scrub(ledger)
    taken = ledger.take(alice, 2)
    assert len(taken.fresh) == 1
    assert taken.recycled == [ours[1]]


def test_room_is_made_of_what_others_borrowed_never_of_what_they_are_guaranteed(ledger: Ledger) -> None:
    a, b = ledger.enter("a", 1, "s"), ledger.enter("b", 1, "s")
    cache(ledger, b, 6)
    cache(ledger, a, 4)
    c = ledger.enter("c", 1, "s")
    assert ledger.prospect(c) == 0
    evicted = ledger.make_room(c, 3)
    assert len(evicted) == 3
    assert a.owned == 4
    assert b.owned == 3
    scrub(ledger)
    assert ledger.allocatable(c) == 3
    assert ledger.make_room(c, 4) == []  # beyond its limit: nothing is evicted for it


def test_a_lower_limit_takes_cache_and_leaves_what_is_in_use(ledger: Ledger) -> None:
    domain = ledger.enter("b", 1, "s")
    used = ledger.take(domain, 3).fresh
    cache(ledger, domain, 3)
    evicted = ledger.apply({"a": quota(4), "b": quota(1, 2)})
    assert len(evicted) == 3
    assert domain.owned == 3
    assert ledger.allocatable(domain) == 0
    assert ledger.release(used[0], keep=True) is False, "over its limit, a tenant caches nothing"


def test_a_tenant_that_leaves_is_forgotten_when_its_last_block_is_zero(ledger: Ledger) -> None:
    domain = ledger.enter("a", 1, "s")
    (used,) = ledger.take(domain, 1).fresh
    cache(ledger, domain, 2)
    ledger.apply({"b": quota(3)})
    assert len(ledger.dirty) == 2
    assert ledger.tenants["a"].stale_blocks == 3
    ledger.release(used, keep=True)
    ledger.leave(domain)
    epoch, blocks = ledger.order_scrub()
    assert ledger.tenants["a"].stale_blocks == 3
    ledger.acknowledge(epoch, len(blocks))
    assert "a" not in ledger.tenants
    assert ledger.clean == 10


def test_a_draining_generation_is_freed_without_staying_cached(ledger: Ledger) -> None:
    old = ledger.enter("a", 1, "s")
    (used,) = ledger.take(old, 1).fresh
    (cached,) = cache(ledger, old, 1)
    ledger.apply({"a": quota(4, generation=2), "b": quota(3)})
    assert ledger.state(cached) == DIRTY
    assert ledger.state(used) == IN_USE
    assert ledger.tenants["a"].stale_blocks == 0  # draining is not stale: the floor has not risen
    assert ledger.release(used, keep=True) is False
    new = ledger.enter("a", 2, "s")
    assert ledger.release(ledger.take(new, 1).fresh[0], keep=True) is True


def test_a_domain_cannot_be_left_more_often_than_entered(ledger: Ledger) -> None:
    domain = ledger.enter("a", 1, "s")
    ledger.leave(domain)
    with pytest.raises(WrongState):
        ledger.leave(domain)


@pytest.mark.parametrize("act", ["release", "evict"])
def test_a_block_that_is_clean_can_be_neither_released_nor_evicted(ledger: Ledger, act: str) -> None:
    with pytest.raises(WrongState):
        ledger.release(5, keep=False) if act == "release" else ledger.evict(5)


def test_a_mark_of_blocks_is_scrubbed_ahead_of_the_next_trust_domain(ledger: Ledger) -> None:
    ledger.apply({"a": quota(10)})
    alice, bob = ledger.enter("a", 1, "alice"), ledger.enter("a", 1, "bob")
    ours, theirs = cache(ledger, alice, 5), cache(ledger, bob, 5)
    assert ledger.allocatable(ledger.enter("a", 1, "carol")) == 0
    assert ledger.scrub_ahead() == ours[:1]
    scrub(ledger)
    carol = ledger.enter("a", 1, "carol")
    assert ledger.allocatable(carol) == 1
    assert ledger.scrub_ahead() == [], "nothing has changed since"
    taken = ledger.take(carol, 1).fresh
    assert ledger.scrub_ahead() == ours[1:2]
    assert {ledger.state(block) for block in (*taken, *theirs)} == {IN_USE, CACHED}


def test_a_single_trust_domain_keeps_its_cache_whole(ledger: Ledger) -> None:
    domain = ledger.enter("a", 1, "s")
    cached = cache(ledger, domain, 4)
    assert ledger.scrub_ahead() == []
    assert {ledger.state(block) for block in cached} == {CACHED}


def test_nothing_in_use_and_nothing_of_another_tenant_is_scrubbed_ahead(ledger: Ledger) -> None:
    first, second, other = ledger.enter("a", 1, "s"), ledger.enter("a", 1, "t"), ledger.enter("b", 1, "s")
    ledger.take(first, 2)
    ledger.take(second, 2)
    theirs = cache(ledger, other, 3)
    assert ledger.scrub_ahead() == []
    assert {ledger.state(block) for block in theirs} == {CACHED}
