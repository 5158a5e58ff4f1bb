"""What the status and the Events say of a rotation that cannot be."""

from __future__ import annotations

import copy
from typing import Any

import pytest

ROTATE = "blockwarden.dev/rotate-salt"


def annotated(world: Any, annotations: dict[str, str]) -> dict[str, Any]:
    policy: dict[str, Any] = copy.deepcopy(world.observed.policy)
    policy["metadata"]["annotations"] = annotations
    return policy


def test_rotating_a_tenant_that_does_not_exist_is_said_once(world: Any) -> None:
    world.take()
    plan = world.take(policy=annotated(world, {f"{ROTATE}.nobody": "1", f"{ROTATE}.acme": ""}))
    assert plan.status["rotation"]["unknownTenants"] == ["nobody"]
    assert plan.status["rotation"]["phase"] == "Idle"
    (notice,) = [notice for notice in plan.notices if notice.reason == "RotationTenantUnknown"]
    assert notice.warning
    assert "no tenant nobody" in notice.note
    assert world.take().notices == ()
    both = world.take(policy=annotated(world, {f"{ROTATE}.nobody": "2", f"{ROTATE}.noone": "1"}))
    assert ["no tenant noone," in notice.note for notice in both.notices] == [True]
    assert "unknownTenants" not in world.take(policy=annotated(world, {})).status["rotation"]


@pytest.mark.parametrize("name", ["acme", "globex"])
def test_a_tenant_that_exists_is_not_unknown(world: Any, name: str) -> None:
    world.take()
    plan = world.take(policy=annotated(world, {f"{ROTATE}.{name}": "1"}))
    assert "unknownTenants" not in plan.status["rotation"]
    assert [notice.reason for notice in plan.notices] == ["RotationStarted"]


def test_any_number_of_unknown_names_is_one_event_of_bounded_length(world: Any) -> None:
    world.take()
    plan = world.take(policy=annotated(world, {f"{ROTATE}.{'x' * 50}{index:03}": "1" for index in range(200)}))
    assert len(plan.status["rotation"]["unknownTenants"]) == 32
    assert [len(notice.note) < 1000 for notice in plan.notices] == [True]
    assert world.take().notices == ()
