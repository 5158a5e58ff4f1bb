"""Refusals are counted by reason, and by tenant as long as there is one."""

from __future__ import annotations

from blockwarden_core.policy import TenantShare
from blockwarden_core.report import RefusalCount
from blockwarden_engine.refusals import Refusals, add_refusals

ACME = TenantShare(name="acme", guaranteed=1, limit=1, generation=1, floor=1)


def test_processes_are_added_up_and_names_without_a_tenant_stay_empty() -> None:
    api, core = Refusals(), Refusals()
    api.count("salt_forged")
    api.count("request_too_large", ACME)
    core.count("salt_forged")
    parts = [made.since_start(["acme"]) for made in (api, core)]
    assert add_refusals(*parts) == (
        RefusalCount(tenant="", reason="salt_forged", count=2),
        RefusalCount(tenant="acme", reason="request_too_large", count=1),
    )


def test_a_tenant_that_is_gone_is_forgotten_for_good() -> None:
    made = Refusals()
    made.count("request_too_large", ACME)
    assert made.since_start([]) == ()
    assert made.since_start(["acme"]) == (), "whoever comes back under the name begins at none"
