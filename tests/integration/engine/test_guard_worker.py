"""Block tables corrupted on purpose, between the scheduler's guard and its allocation, and between the guard and the worker.

Only the request with the corrupted table ends; its neighbour answers what it answers undisturbed, and the engine goes on. Greedy
answers are compared token by token in float32; batches of another shape round differently, so a difference counts only where the
undisturbed run's best two tokens are at least EPSILON apart in log probability.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

EPSILON = 1e-3
LONG = 700
NEIGHBOUR = "The quick brown fox jumps over the lazy dog while birds watch from a tree. " * 3
VICTIM = "A block of memory that changes its owner is zero before anybody reads it. " * 3
CORRUPT = """
def corrupt(output):
    of = lambda name: [i for i, d in enumerate(scheduler.ledger.domains) if d is not None and d.tenant.name == name]
    theirs, cached = of("b"), output.scheduled_cached_reqs
    mine = lambda request: scheduler.requests[request].trust_domain.tenant.name == "a"
    if not theirs:
        return False
    if WHEN == "new":
        for new in output.scheduled_new_reqs:
            if mine(new.req_id):
                new.block_ids[0][-1] = theirs[0]
                return True
        return False
    for at, request in enumerate(cached.req_ids):
        if mine(request):
            cached.new_block_ids[at] = (list((cached.new_block_ids[at] or ([],))[0]) + [theirs[0]],)
            return True
    return False
"""
SCHEDULER_SIDE = """
original = type(scheduler)._update_after_schedule
def once(output):
    if corrupt(output):
        del scheduler._update_after_schedule
    original(scheduler, output)
scheduler._update_after_schedule = once
"""
WORKER_SIDE = """
original = type(scheduler).schedule
def once(*args, **kwargs):
    output = original(scheduler, *args, **kwargs)
    if corrupt(output):
        del scheduler.schedule
    return output
scheduler.schedule = once
"""
BUSY = "result = any(request.trust_domain.tenant.name == 'b' for request in scheduler.running)"
ARMED = "result = 'schedule' in vars(scheduler) or '_update_after_schedule' in vars(scheduler)"


def generate(engine: Any, tenant: str, prompt: str, length: int) -> Any:
    answer = engine.complete(
        engine.deployment.token(tenant, user=prompt[:5].strip()), prompt, max_tokens=length, logprobs=2, return_token_ids=True
    )
    return answer


def same_greedy(reference: Any, other: Any) -> None:
    """Raises AssertionError unless both choices agree up to a token where the reference was undecided."""
    for at, (expected, got) in enumerate(zip(reference["token_ids"], other["token_ids"], strict=True)):
        if expected != got:
            best, second = sorted(reference["logprobs"]["top_logprobs"][at].values(), reverse=True)[:2]
            assert best - second < EPSILON, f"token {at} differs and its margin is {best - second}"
            return


@pytest.mark.parametrize("when", ["new", "running"])
@pytest.mark.parametrize("side", ["scheduler", "worker"])
@pytest.mark.parametrize("kind", ["engine", "sync_engine"])
def test_only_the_request_with_the_corrupted_table_ends(kind: str, side: str, when: str, request: pytest.FixtureRequest) -> None:
    engine = request.getfixturevalue(kind)
    reference = generate(engine, "b", NEIGHBOUR, LONG).json()["choices"][0]
    before = engine.report().counters.get("guard_violations", 0)
    with ThreadPoolExecutor(2) as pool:
        neighbour = pool.submit(generate, engine, "b", NEIGHBOUR, LONG)
        while not engine.core(BUSY):
            assert not neighbour.done(), "the neighbour ended before anything was corrupted: make LONG longer"
        engine.core(f"WHEN = {when!r}\n{CORRUPT}{SCHEDULER_SIDE if side == 'scheduler' else WORKER_SIDE}")
        victim = pool.submit(generate, engine, "a", VICTIM, 120)
        assert victim.result().status >= 500
        assert not engine.core(ARMED), "nothing was corrupted"
        assert neighbour.result().status == 200
        same_greedy(reference, neighbour.result().json()["choices"][0])
    assert engine.report().counters["guard_violations"] > before
    assert generate(engine, "a", VICTIM, 4).status == 200, "the tenant itself is not shut out"
    report = engine.wait_for(lambda report: report.pool.dirty == report.pool.scrubbing == 0)
    assert sum(tenant.running + tenant.waiting for tenant in report.tenants) == 0


def test_a_comparison_that_cannot_fail_would_be_seen() -> None:
    decided = {"token_ids": [1, 2], "logprobs": {"top_logprobs": [{"a": -0.1, "b": -3.0}] * 2}}
    undecided = {"token_ids": [1, 2], "logprobs": {"top_logprobs": [{"a": -0.69, "b": -0.6901}] * 2}}
    other = {"token_ids": [1, 3]}
    same_greedy(undecided, other)
    with pytest.raises(AssertionError, match="token 1 differs"):
        same_greedy(decided, other)
