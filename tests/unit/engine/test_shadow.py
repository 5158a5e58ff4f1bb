"""The worker's own book of owners: what it believes, what it refuses, and what it refuses to let run on."""

from __future__ import annotations

from blockwarden_engine.guard_worker import Findings, ShadowTable
from blockwarden_engine.protocol import StepOrder

A, B = 1, 2


def shadow(lasting: tuple[bool, ...] = (True,)) -> ShadowTable:
    """Request ra of owner A has blocks 1 and 2, request rb of owner B has 3; 4 to 7 belong to nobody."""
    made = ShadowTable(8, lasting)
    made.take(StepOrder(grants={A: [1, 2], B: [3]}, owners={"ra": A, "rb": B}))
    findings = Findings()
    made.check_whole("ra", ([1, 2],), findings)
    made.check_whole("rb", ([3],), findings)
    assert not findings.violations
    return made


def test_own_blocks_and_the_null_block_pass() -> None:
    findings = Findings()
    shadow().check_whole("ra", ([2, 0, 1],), findings)
    assert (findings.violations, findings.tables) == ([], {})


def test_a_foreign_block_becomes_the_null_block_and_is_reported_once() -> None:
    findings = Findings()
    shadow().check_whole("ra", ([1, 3, 3],), findings)
    assert findings.violations == [("ra", 3)]
    assert findings.tables == {"ra": ([1, 0, 0],)}


def test_a_block_of_nobody_and_an_id_out_of_range_are_refused() -> None:
    for block in (5, 8, -1):
        findings = Findings()
        shadow().check_more("ra", ([block],), findings)
        assert findings.violations == [("ra", block)]


def test_a_request_without_an_owner_may_use_nothing() -> None:
    findings = Findings()
    shadow().check_whole("stranger", ([4],), findings)
    assert findings.violations == [("stranger", 4)]


def test_a_grant_of_another_owners_block_is_not_believed() -> None:
    made, findings = shadow(), Findings()
    made.take(StepOrder(grants={B: [1]}))
    made.check_more("rb", ([1],), findings)
    assert findings.violations == [("rb", 1)]
    assert made.owner(1) == A


def test_a_grant_behind_this_workers_own_scrub_is_believed() -> None:
    made, findings = shadow(), Findings()
    made.finish(["ra"])
    made.take(StepOrder(epoch=1, scrub=[1]))
    made.take(StepOrder(grants={B: [1]}))
    made.check_more("rb", ([1],), findings)
    assert findings.violations == []
    assert made.owner(1) == B


def test_recycling_within_an_owner_needs_no_scrub_epoch_and_never_crosses_owners() -> None:
    made, findings = shadow(), Findings()
    made.take(StepOrder(zero=[2], grants={B: [2]}))
    made.check_more("rb", ([2],), findings)
    assert findings.violations == [("rb", 2)]


def test_a_running_request_whose_block_was_taken_does_not_run_on_with_it() -> None:
    made, findings = shadow(), Findings()
    made.take(StepOrder(epoch=1, scrub=[1]))
    made.check_kept(["ra", "rb"], findings)
    assert findings.violations == [("ra", 1)]
    assert findings.voided == {"ra": ([0, 0],)}


def test_a_whole_table_sent_again_after_a_preemption_is_a_fresh_start() -> None:
    made, findings = shadow(), Findings()
    made.take(StepOrder(epoch=1, scrub=[1, 2]))
    made.take(StepOrder(grants={A: [4, 5]}))
    made.check_whole("ra", ([4, 5],), findings)
    made.check_kept(["ra"], findings)
    assert findings.violations == []


def test_groups_with_a_window_may_lose_blocks_behind_it() -> None:
    made, findings = shadow(lasting=(False,)), Findings()
    made.take(StepOrder(epoch=1, scrub=[1]))
    made.check_kept(["ra"], findings)
    assert findings.violations == []


def test_the_null_block_is_zeroed_again_after_a_refused_request_wrote_to_it() -> None:
    made = shadow()
    assert made.urgent(StepOrder(epoch=1, scrub=[4], zero=[1])) == [1]
    made.check_more("ra", ([3],), Findings())
    assert made.urgent(StepOrder()) == [0]
    assert made.urgent(StepOrder()) == []


def test_a_finished_request_id_means_nothing_when_it_comes_back() -> None:
    made, findings = shadow(), Findings()
    made.finish(["ra"])
    made.check_whole("ra", ([1],), findings)
    assert findings.violations == [("ra", 1)]
