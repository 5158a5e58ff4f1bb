"""Corrupted block tables end the request that has them; its neighbour, and the engine, do not notice."""

from __future__ import annotations

from typing import Any

import pytest

from blockwarden_engine.ledger import CLEAN

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture
def undisturbed(make_rig: Any, share: Any) -> list[int]:
    """What the neighbour answers when nothing is wrong."""
    rig = make_rig(share("a", 20), share("b", 20), blocks=64)
    rig.add(rig.mounts.token("b"), 60, tokens=12, name="neighbour")
    rig.run()
    return list(rig.outputs["neighbour"])


def pair(rig: Any) -> tuple[str, str]:
    """A neighbour that runs already, and an offender that is new."""
    neighbour = rig.add(rig.mounts.token("b"), 60, tokens=12, name="neighbour")
    rig.step()
    return neighbour, rig.add(rig.mounts.token("a"), 61, tokens=12, name="offender")


def table(rig: Any, name: str) -> list[Any]:
    return rig.scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks[name]


def corrupt_on_allocation(rig: Any, monkeypatch: pytest.MonkeyPatch, when: int) -> None:
    """The offender's newest block becomes the neighbour's first, on its `when`-th allocation that gives it blocks."""
    manager, seen = rig.scheduler.kv_cache_manager, [0]
    allocate = manager.allocate_slots

    def allocate_slots(request: Any, *args: Any, **kwargs: Any) -> Any:
        blocks = allocate(request, *args, **kwargs)
        if request.request_id == "offender" and blocks is not None and blocks.blocks[0]:
            seen[0] += 1
            if seen[0] == when:
                blocks.blocks[0][-1] = table(rig, "offender")[-1] = table(rig, "neighbour")[0]
        return blocks

    monkeypatch.setattr(manager, "allocate_slots", allocate_slots)


def check_over(rig: Any, undisturbed: list[int], error: bool) -> None:
    rig.run()
    assert rig.finished == {"neighbour": "length", "offender": "error" if error else "length"}
    assert rig.outputs["neighbour"] == undisturbed
    assert rig.scheduler.counters["guard_violations"] >= 1
    pool = rig.scheduler.report().pool
    assert pool.owned == rig.scheduler.ledger.cached, "a block that the corrupted table lost is still owned"
    assert pool.dirty == pool.scrubbing == 0
    again = rig.add(rig.mounts.token("b"), 60, name="again")
    rig.run()
    assert rig.finished[again] == "length"
    assert rig.cached[again] == 48


@pytest.mark.parametrize("when", [1, 2], ids=["first table", "while it answers"])
def test_a_foreign_block_in_a_new_table(
    make_rig: Any, share: Any, monkeypatch: pytest.MonkeyPatch, undisturbed: list[int], when: int
) -> None:  # fmt: skip
    rig = make_rig(share("a", 20), share("b", 20), blocks=64)
    pair(rig)
    corrupt_on_allocation(rig, monkeypatch, when)
    check_over(rig, undisturbed, error=True)


def test_without_the_guard_the_neighbours_block_is_read(make_rig: Any, share: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: the same corruption, and a scheduler that does not look."""
    rig = make_rig(share("a", 20), share("b", 20), blocks=64)
    monkeypatch.setattr("blockwarden_engine.dispatch.find_foreign", lambda *_: [])
    pair(rig)
    corrupt_on_allocation(rig, monkeypatch, 1)
    with pytest.raises(AssertionError, match="which holds something of another trust domain"):
        rig.run()


def test_a_foreign_block_in_an_old_table(make_rig: Any, share: Any, undisturbed: list[int]) -> None:
    """Workers keep the table that they were sent, so this one never leaves the scheduler; freeing and hashing leave the foreign
    block alone."""
    rig = make_rig(share("a", 20), share("b", 20), blocks=64)
    pair(rig)
    rig.step()
    table(rig, "offender")[0] = table(rig, "neighbour")[0]
    check_over(rig, undisturbed, error=False)


def test_a_violation_that_a_worker_reports(make_rig: Any, share: Any, undisturbed: list[int]) -> None:
    rig = make_rig(share("a", 20), share("b", 20), blocks=64)
    pair(rig)
    rig.step()
    rig.worker.violations.append(("offender", 5))
    check_over(rig, undisturbed, error=True)


def test_a_step_that_the_guard_empties_leaves_no_block_behind(
    make_rig: Any, share: Any, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """vLLM counts steps with tokens and frees blocks by that count: a step emptied afterwards must not stay counted."""
    rig = make_rig(share("a", 20), share("b", 20), blocks=64)
    rig.add(rig.mounts.token("b"), 60, tokens=2, name="neighbour")
    rig.run()
    rig.add(rig.mounts.token("a"), 50, name="offender")
    manager = rig.scheduler.kv_cache_manager
    allocate = manager.allocate_slots

    def allocate_slots(request: Any, *args: Any, **kwargs: Any) -> Any:
        blocks = allocate(request, *args, **kwargs)
        if request.request_id == "offender":
            cached = next(iter(rig.scheduler.ledger.tenants["b"].lru))
            table(rig, "offender")[-1] = rig.scheduler.pool.blocks[cached]
        return blocks

    monkeypatch.setattr(manager, "allocate_slots", allocate_slots)
    rig.run()
    assert rig.finished["offender"] == "error"
    name = rig.add(rig.mounts.token("a"), 40)
    rig.step()
    rig.abort(name)
    rig.run()
    assert not rig.scheduler.deferred_frees
    assert rig.scheduler.report().pool.owned == rig.scheduler.ledger.cached


def test_the_rig_sees_a_ledger_that_does_not_scrub(make_rig: Any, share: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken twin in the whole scheduler, seen by the content of the blocks alone."""
    monkeypatch.setattr("blockwarden_engine.ledger.Ledger._soil", _clean_at_once)
    rig = make_rig(share("a", 20), share("b", 20), blocks=64)
    rig.add(rig.mounts.token("a"), 100)
    with pytest.raises(AssertionError, match="is clean and not zero"):
        rig.run()


def _clean_at_once(ledger: Any, domain: Any, block: int) -> None:
    ledger._state[block] = CLEAN
    ledger.domains[block] = None
    ledger._clean.append(block)
    domain.owned -= 1
    ledger._count(domain.tenant, -1)
