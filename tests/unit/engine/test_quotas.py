"""From shares to blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwarden_core.policy import EnginePolicy, TenantShare
from blockwarden_engine.errors import PolicyTooLarge
from blockwarden_engine.quotas import Quota, plan_quotas


def policy(**shares: tuple[int | str, int | str]) -> EnginePolicy:
    tenants = tuple(
        TenantShare(name=name, guaranteed=guaranteed, limit=limit, generation=3, floor=2)
        for name, (guaranteed, limit) in shares.items()
    )
    return EnginePolicy(policy_uid="u", version=1, tenants=tenants)


def test_absolute_amounts_come_first_and_percentages_are_of_the_rest() -> None:
    planned = plan_quotas(policy(canary=(10, 10), a=("40%", "40%"), b=("20%", "100%")), 110)
    assert planned == {
        "canary": Quota(10, 10, 10, 3, 2),
        "a": Quota(40, 40, 40, 3, 2),
        "b": Quota(20, 100, 60, 3, 2),  # its own 20, and the 40 that nobody is guaranteed
    }


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({"a": (60, 60), "b": (60, 60)}, "120 blocks are guaranteed and the pool has 100"),
        ({"a": ("60%", "60%"), "b": ("60%", "60%")}, "120 blocks are guaranteed and the pool has 100"),
        ({"a": (50, "10%")}, "tenants.a.limit: 5 of 100 blocks, but 50 are guaranteed"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(shares: dict[str, tuple[int | str, int | str]], words: str) -> None:
    with pytest.raises(PolicyTooLarge, match=words):
        plan_quotas(policy(**shares), 100)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.integers(0, 60), st.integers(1, 500))
def test_guarantees_never_exceed_the_pool(parts: list[int], absolute: int, pool: int) -> None:
    shares: dict[str, tuple[int | str, int | str]] = {f"t{at}": (f"{part}%", "100%") for at, part in enumerate(parts)}
    try:
        planned = plan_quotas(policy(fixed=(absolute, absolute), **shares), pool)
    except PolicyTooLarge:
        assert absolute + sum(parts) * (pool - absolute) // 100 > pool - len(parts) or absolute > pool
        return
    assert sum(quota.guaranteed for quota in planned.values()) <= pool
    assert all(quota.guaranteed <= quota.capacity <= quota.limit <= pool for quota in planned.values())
