"""Requests through the real scheduler: they finish, share within a trust domain only, and leave nothing behind."""

from __future__ import annotations

from typing import Any

import pytest

from blockwarden_core.policy import TenantShare

pytestmark = pytest.mark.integration


def share(name: str, guaranteed: int | str, limit: int | str | None = None, **fields: Any) -> TenantShare:
    return TenantShare(
        name=name, guaranteed=guaranteed, limit=guaranteed if limit is None else limit, **{"generation": 1, "floor": 1} | fields
    )


def test_a_request_runs_and_its_scope_alone_hits_its_blocks(make_rig: Any) -> None:
    rig = make_rig(share("a", "50%"), share("b", "50%"))
    alice, bob, again, other = (rig.mounts.token(*who) for who in (("a", "alice"), ("a", "bob"), ("a", "alice"), ("b",)))
    cold = rig.add(alice, 100)
    rig.run()
    assert len(rig.outputs[cold]) == 8
    assert rig.finished[cold] == "length"
    stats = {}
    for name, salt in (("again", again), ("bob", bob), ("other", other)):
        request = rig.add(salt, 100, name=name)
        rig.run()
        stats[name] = len(rig.outputs[request])
    assert stats == {"again": 8, "bob": 8, "other": 8}
