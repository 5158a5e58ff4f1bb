"""One tenant floods; the others get their blocks, their slots and their part of each step's tokens."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def flood(rig: Any, tenant: str, count: int, prompt: int = 300, tokens: int = 8) -> None:
    """Requests that share nothing with one another."""
    for at in range(count):
        rig.add(rig.mounts.token(tenant, f"u{at}"), prompt, tokens=tokens)


def first_token_cost(rig: Any, salt: str, prompt: int) -> int:
    """Tokens of all steps that are scheduled from a request's arrival until its prompt is done: what its first token waits for,
    but for a step that was on its way already."""
    name, cost = rig.add(salt, prompt, tokens=4), 0
    while rig.requests[name].num_computed_tokens < prompt:
        output = rig.step()
        cost += output.total_num_scheduled_tokens if output is not None else 0
    return cost


def quiet_beside_flood(rig: Any) -> float:
    """The median cost of a quiet tenant's first token beside a flood, by its median cost alone."""
    alone = [first_token_cost(rig, rig.mounts.token("quiet", f"alone{at}"), 60) for at in range(10)]
    rig.run()
    flood(rig, "flood", 400)
    for _ in range(10):
        rig.step()
    costs = []
    for at in range(30):
        costs.append(first_token_cost(rig, rig.mounts.token("quiet", f"q{at}"), 60))
        for _ in range(4):
            rig.step()
    assert rig.scheduler.get_request_counts()[1] > 50, "the flood is over: nothing was measured"
    return statistics.median(costs) / statistics.median(alone)


@pytest.mark.parametrize("limit", [150, 220], ids=["at its quota", "borrowing"])
def test_a_quiet_tenants_first_token_waits_for_its_own_prompt_only(make_rig: Any, share: Any, limit: int) -> None:
    rig = make_rig(share("flood", 150, limit), share("quiet", 30), blocks=256, step_tokens=256)
    assert quiet_beside_flood(rig) <= 1.5


def test_without_the_division_of_steps_it_waits_for_the_flood(
    make_rig: Any, share: Any, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """The broken twin: quotas and slots are kept, and steps are first come, first served."""
    monkeypatch.setattr("blockwarden_engine.fairness.Fairness.divide", lambda *_: None)
    rig = make_rig(share("flood", 150), share("quiet", 30), blocks=256, step_tokens=256)
    assert quiet_beside_flood(rig) > 1.5


def test_a_full_queue_of_one_tenant_stops_nobody(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("flood", 8), share("quiet", 30), blocks=64, slots=4)
    flood(rig, "flood", 100, prompt=100, tokens=100)
    for _ in range(5):
        rig.step()
    name = rig.add(rig.mounts.token("quiet"), 60)
    assert rig.run_until(lambda: name in rig.first_step) <= 3


def test_slots_are_kept_for_tenants_that_have_none(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("flood", 40), share("b", 10), share("c", 10), blocks=64, slots=8)
    flood(rig, "flood", 40, prompt=16, tokens=200)
    for _ in range(5):
        rig.step()
    assert rig.tenant("flood").running == 6
    names = [rig.add(rig.mounts.token(tenant), 20) for tenant in "bc"]
    rig.run_until(lambda: all(name in rig.first_step for name in names), limit=4)
    assert rig.tenant("flood").running == 6


def test_max_sequences_caps_a_tenant(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 40, max_sequences=2), blocks=64)
    flood(rig, "a", 10, prompt=16, tokens=20)
    seen = set()
    while rig.scheduler.has_requests():
        rig.step()
        seen.add(len(rig.scheduler.running))
    assert max(seen) == 2
    assert set(rig.finished.values()) == {"length"}


def test_a_cap_on_tokens_holds_even_when_nobody_else_is_there(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 60, max_batched_tokens_share="25%"), blocks=64, step_tokens=128)
    rig.add(rig.mounts.token("a"), 320)
    sizes = []
    while rig.scheduler.has_requests():
        output = rig.step()
        sizes.append(output.total_num_scheduled_tokens if output is not None else 0)
    assert max(sizes) == 32


def test_two_floods_share_in_proportion_to_their_guarantees(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("big", 600), share("small", 200), blocks=1024, step_tokens=128, slots=32)
    flood(rig, "big", 300, prompt=200, tokens=1)
    flood(rig, "small", 300, prompt=200, tokens=1)
    tokens = {"big": 0, "small": 0}
    for _ in range(200):
        output = rig.step()
        for name, count in output.num_scheduled_tokens.items():
            tokens[rig.requests[name].flow.name] += count
    assert tokens["big"] + tokens["small"] > 190 * 120, "the step was not filled"
    assert 2.5 < tokens["big"] / tokens["small"] < 3.5


def test_what_one_does_not_use_of_its_share_the_other_gets(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 120), share("b", 120), blocks=256, step_tokens=128)
    flood(rig, "a", 50, prompt=200, tokens=1)
    sizes = [rig.step().total_num_scheduled_tokens for _ in range(20)]
    assert min(sizes[:-1]) >= 120


def test_first_come_first_served_within_a_tenant(make_rig: Any, share: Any) -> None:
    rig = make_rig(share("a", 20), share("b", 20), blocks=64)
    names = [rig.add(rig.mounts.token("a", f"u{at}"), 100, tokens=4) for at in range(12)]
    rig.run()
    first = [rig.first_step[name] for name in names]
    assert first == sorted(first)
