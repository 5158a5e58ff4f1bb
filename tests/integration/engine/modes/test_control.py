"""Pausing, resuming and resetting, with requests running, through the engine core's own utilities: no route exposes them."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

KINDS = pytest.mark.parametrize("kind", ["engine", "sync_engine", "twin_engine"])
LONG = (("a", 60, 160), ("b", 60, 160), ("c", 60, 160))
ABORT_ONE = """
from vllm.v1.request import RequestStatus
core._send_abort_outputs(scheduler.finish_requests(scheduler.running[0].request_id, RequestStatus.FINISHED_ABORTED))
"""
COMPUTED = "result = {request.request_id: request.num_computed_tokens for request in scheduler.running}"


def running(engine: Any, count: int = len(LONG)) -> None:
    engine.wait_for(lambda report: sum(tenant.running for tenant in report.tenants) == count)


@KINDS
def test_kept_while_paused(subject: Any, held: Any, at_once: Any) -> None:
    with held(subject):
        answers = at_once(subject, *LONG)
        running(subject)
        subject.utility("pause_scheduler", "keep", False)
        before = subject.core(COMPUTED)
        (late,) = at_once(subject, ("a", 60, 4))
        subject.wait_for(lambda report: any(tenant.waiting for tenant in report.tenants))
        assert (
            subject.core("core.abort_requests([next(iter(scheduler.running)).request_id]); " + COMPUTED).items() < before.items()
        )
        subject.wait_for(lambda report: report.pool.dirty == report.pool.scrubbing == 0)
        subject.utility("resume_scheduler")
        statuses = sorted(answer.result().json()["choices"][0]["finish_reason"] for answer in (*answers, late))
    assert statuses == ["abort", "length", "length", "length"]


@KINDS
@pytest.mark.parametrize("mode", ["abort", "wait"])
def test_ended_or_waited_for_by_a_pause(subject: Any, held: Any, at_once: Any, mode: str) -> None:
    with held(subject):
        answers = at_once(subject, *LONG)
        running(subject)
        subject.utility("pause_scheduler", mode, True)
        reasons = {answer.result().json()["choices"][0]["finish_reason"] for answer in answers}
        assert subject.core("result = core.is_scheduler_paused()")
        assert subject.core("result = scheduler.ledger.cached") == 0, "a pause that clears the cache left some of it"
        subject.utility("resume_scheduler")
    assert reasons == {"abort" if mode == "abort" else "length"}


@KINDS
def test_reset_while_running_and_while_idle(subject: Any, held: Any, at_once: Any) -> None:
    token, prompt = subject.deployment.token("a", user=f"reset{time.monotonic()}"), [random.randrange(5, 400) for _ in range(100)]
    with held(subject):
        subject.complete(token, prompt)
        answers = at_once(subject, *LONG)
        running(subject)
        assert subject.utility("reset_prefix_cache", False, False) is False, "a cache in use was reset"
        for _ in range(3):
            assert subject.utility("reset_prefix_cache", True, False) is True
        assert {answer.result().json()["usage"]["completion_tokens"] for answer in answers} == {160}
        assert subject.cached(token, prompt) == 0, "a reset left a prompt in the cache"
        subject.wait_for(lambda report: not sum(tenant.running for tenant in report.tenants))
        assert subject.utility("reset_prefix_cache", False, False) is True
        assert subject.core("result = scheduler.ledger.cached") == 0
