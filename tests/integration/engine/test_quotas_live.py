"""Quotas as tenants feel them: a real engine, a policy that is swapped in its mounted ConfigMap, idle and under load.

Each bound is measured by one function, which also measures an engine whose protection was taken out on purpose.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from blockwarden_core import layout
from blockwarden_core.policy import TenantShare
from blockwarden_core.report import TenantBlocks, TenantState

POOL, BLOCK = 128, 32


def share(name: str, guaranteed: int, limit: int | None = None, **fields: Any) -> TenantShare:
    amounts = {"guaranteed": guaranteed, "limit": guaranteed if limit is None else limit}
    return TenantShare(name=name, **{"generation": 1, "floor": 1} | amounts | fields)


CANARY = share("canary", 4, generation=2, floor=2)


class Load:
    """Requests that run beside the test; a prompt is so many tokens that nobody else sends."""

    def __init__(self, engine: Any, threads: ThreadPoolExecutor) -> None:
        self._engine, self._threads, self.sent = engine, threads, 0

    def send(self, tenant: str, prompt: int, tokens: int) -> Future[Any]:
        self.sent += 1
        ids = [(self.sent * 7 + at) % 200 + 32 for at in range(prompt)]
        token = self._engine.deployment.token(tenant, user=f"u{time.monotonic_ns()}")
        return self._threads.submit(self._engine.complete, token, ids, max_tokens=tokens)


@pytest.fixture
def load(engine: Any) -> Iterator[Load]:
    with ThreadPoolExecutor(16) as threads:
        yield Load(engine, threads)


def tenant(report: Any, name: str) -> TenantBlocks | None:
    return next((found for found in report.tenants if found.name == name), None)


def owned(report: Any, name: str) -> int:
    found = tenant(report, name)
    return 0 if found is None else found.owned_blocks


def put(engine: Any, *shares: TenantShare, grace: int = 0) -> int:
    """The policy that is in force when this returns; its version."""
    version = engine.deployment.share(*shares, CANARY, grace=grace).version
    engine.wait_for(lambda report: report.policy_version == version)
    return int(version)


def peak(engine: Any, running: list[Future[Any]], measure: Callable[[Any], int]) -> int:
    """The highest value of `measure` over reports until all requests are done."""
    found = 0
    while not all(one.done() for one in running):
        found = max(found, measure(engine.report()))
    assert [one.result().status for one in running] == [200] * len(running)
    return found


@contextlib.contextmanager
def broken(engine: Any, take_out: str, put_back: str) -> Iterator[None]:
    """The engine without one of its protections."""
    engine.core(take_out)
    try:
        yield
    finally:
        engine.core(put_back)


def borrowed(engine: Any, load: Load) -> int:
    """The most that a flood of a holds, while b, which has 60 blocks guaranteed, is idle."""
    put(engine, share("a", 20, 128), share("b", 60))
    return peak(engine, [load.send("a", 500, 60) for _ in range(8)], lambda report: owned(report, "a"))


def test_a_tenant_borrows_what_nobody_is_guaranteed_and_nothing_else(engine: Any, policy_again: Any, load: Load) -> None:
    assert 20 < borrowed(engine, load) <= POOL - 60 - 4


def test_without_the_rule_of_borrowing_it_takes_more(engine: Any, policy_again: Any, load: Load) -> None:
    take_out = (
        "ledger = type(scheduler.ledger); core.kept = ledger._allowance\n"
        "ledger._allowance = lambda self, tenant, clean: max(0, min(clean, tenant.limit - tenant.owned))"
    )
    with broken(engine, take_out, "type(scheduler.ledger)._allowance = core.kept"):
        assert borrowed(engine, load) > POOL - 60 - 4


def test_without_leave_to_borrow_nobody_does(engine: Any, policy_again: Any, load: Load) -> None:
    put(engine, share("a", 20), share("b", 60))
    assert peak(engine, [load.send("a", 500, 20) for _ in range(4)], lambda report: owned(report, "a")) <= 20


def test_what_is_borrowed_comes_back_through_scrub_while_the_borrower_runs(engine: Any, policy_again: Any, load: Load) -> None:
    put(engine, share("a", 20, 128), share("b", 20))
    flood = [load.send("a", 400, 400) for _ in range(8)]
    engine.wait_for(lambda report: owned(report, "a") > 90)
    before = engine.report().scrub.blocks
    put(engine, share("a", 20, 128), share("b", 80))
    wanted = load.send("b", 900, 100)
    assert wanted.result(120).status == 200
    assert not all(one.done() for one in flood), "the borrower was gone: nothing was given back on demand"
    assert engine.report().scrub.blocks > before
    assert [one.result().status for one in flood] == [200] * 8, "who gave way went on later"
    assert engine.report().counters.get("preemption_vetoes", 0) == 0


def test_too_much_is_refused_with_the_numbers_and_changes_nothing(engine: Any, policy_again: Any) -> None:
    good = put(engine, share("a", 40), share("b", 40))
    policy_again.share(share("a", 100), share("b", 100), CANARY)
    report = engine.wait_for(lambda report: "PolicyTooLarge" in report.reload_errors)  # counted where blocks are planned
    assert "204 blocks are guaranteed and the pool has 128: lower guaranteed" in report.reload_error
    assert (report.policy_version, tenant(report, "a").limit_blocks) == (good, 40)
    assert report.reload_errors["PolicyTooLarge"] >= 1
    page = engine.internal(layout.METRICS_PATH).body.decode()
    assert "blockwarden_policy_reload_failed 1.0" in page
    assert 'blockwarden_policy_reload_errors_total{reason="PolicyTooLarge"}' in page
    assert engine.complete(policy_again.token("a"), "hi").status == 200


def test_a_lower_limit_empties_the_cache_of_an_idle_engine(engine: Any, policy_again: Any, load: Load) -> None:
    put(engine, share("a", 60), share("b", 40))
    assert load.send("a", 900, 2).result().status == 200
    before = engine.wait_for(lambda report: tenant(report, "a").cached_blocks >= 28 and not report.scrub.backlog)
    put(engine, share("a", 10), share("b", 40))
    report = engine.wait_for(lambda report: owned(report, "a") <= 10 and not report.scrub.backlog)
    assert report.scrub.epochs_confirmed == report.scrub.epochs_ordered > before.scrub.epochs_ordered
    answer = load.send("a", 900, 2).result()
    assert answer.status == 400
    assert "may need 29 KV blocks of 32 tokens and its tenant can hold 10" in answer.json()["error"]["message"]


def sequences(engine: Any, load: Load) -> int:
    """The most requests of a that run at one time, of ten; the cap of 2 came while they ran."""
    put(engine, share("a", 100), share("b", 20))
    first = [load.send("a", 40, 60) for _ in range(3)]
    put(engine, share("a", 100, max_sequences=2), share("b", 20))
    assert [one.result().status for one in first] == [200] * 3
    later = [load.send("a", 40, 100) for _ in range(10)]
    return peak(engine, later, lambda report: tenant(report, "a").running)


def test_a_cap_on_sequences_holds(engine: Any, policy_again: Any, load: Load) -> None:
    assert sequences(engine, load) == 2


def test_without_the_cap_more_run(engine: Any, policy_again: Any, load: Load) -> None:
    take_out = (
        "fairness = type(scheduler.fairness); core.kept = fairness.may_start\n"
        "fairness.may_start = lambda self, flow, free_slots: True"
    )
    with broken(engine, take_out, "type(scheduler.fairness).may_start = core.kept"):
        assert sequences(engine, load) > 2


WATCH = """
def schedule(*args, **kwargs):
    output = type(scheduler).schedule(scheduler, *args, **kwargs)
    used = sum(n for name, n in output.num_scheduled_tokens.items() if scheduler.requests[name].flow.name == "a")
    core.most = max(core.most, used)
    return output
core.most, scheduler.schedule = 0, schedule
"""


def test_a_cap_on_the_share_of_a_step_holds_and_can_be_lifted(engine: Any, policy_again: Any, load: Load) -> None:
    most = []
    for cap in ("25%", None):
        put(engine, share("a", 100, max_batched_tokens_share=cap), share("b", 20))
        with broken(engine, WATCH, "del scheduler.schedule"):
            assert [one.result().status for one in [load.send("a", 700, 4) for _ in range(3)]] == [200] * 3
        most.append(engine.core("result = core.most"))
    assert most[0] == 256 < most[1]


def test_a_tenant_that_leaves_finishes_what_runs_and_nothing_else(engine: Any, policy_again: Any, load: Load) -> None:
    put(engine, share("a", 40), share("b", 40, 80))
    running = load.send("a", 200, 600)
    engine.wait_for(lambda report: tenant(report, "a").running == 1)
    put(engine, share("b", 40, 80), grace=600)
    report = engine.report()
    assert (tenant(report, "a").state, tenant(report, "a").guaranteed_blocks) == (TenantState.DRAINING, 40)
    refused = engine.complete(policy_again.token("a"), "hi")
    assert (refused.status, refused.json()["error"]["code"]) == (403, "tenant_unknown")
    assert not running.done()
    assert 'blockwarden_tenant_state{state="draining",tenant="a"} 1.0' in engine.internal(layout.METRICS_PATH).body.decode()
    assert running.result().status == 200
    assert running.result().json()["usage"]["completion_tokens"] == 600
    engine.wait_for(lambda report: tenant(report, "a") is None and not report.scrub.backlog)
    assert 'tenant="a"' not in engine.internal(layout.METRICS_PATH).body.decode(), "its series go with it"


def test_a_grace_period_ends_and_returns_the_quota_under_load(engine: Any, policy_again: Any, load: Load) -> None:
    put(engine, share("a", 60), share("b", 20, 100))
    leaver, stayer = load.send("a", 200, 800), load.send("b", 100, 300)
    engine.wait_for(lambda report: tenant(report, "a").running == tenant(report, "b").running == 1)
    put(engine, share("b", 20, 100), grace=1)
    engine.wait_for(lambda report: tenant(report, "a") is None, 60)
    assert leaver.result().status == 500
    assert stayer.result().status == 200
    report = engine.wait_for(lambda report: not report.scrub.backlog)
    assert report.counters["refused_tenant_deregistered"] >= 1
    assert report.pool.clean == report.pool.total - report.pool.owned
    assert peak(engine, [load.send("b", 800, 60) for _ in range(3)], lambda report: owned(report, "b")) > 60, "b borrows it now"
