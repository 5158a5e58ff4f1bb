"""The engine's report: what the ledger and the queues say, as the operator reads it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from blockwarden_core.report import EngineReport, PoolBlocks, TenantBlocks

from .domains import Tenant
from .ledger import Ledger
from .settings import Identity


def render_pool(ledger: Ledger) -> PoolBlocks:
    """All blocks by state."""
    dirty = len(ledger.dirty)
    return PoolBlocks(
        total=ledger.size,
        clean=ledger.clean,
        owned=ledger.size - ledger.clean - dirty - ledger.scrubbing,
        dirty=dirty,
        scrubbing=ledger.scrubbing,
    )


def render_tenants(ledger: Ledger, running: Iterable[Any], waiting: Iterable[Any]) -> tuple[TenantBlocks, ...]:
    """Every tenant of the policy, and those de-registered that still have something here."""
    runs = Counter(request.trust_domain.tenant for request in running)
    waits = Counter(request.trust_domain.tenant for request in waiting if request.trust_domain is not None)
    return tuple(_render_tenant(tenant, runs[tenant], waits[tenant]) for tenant in ledger.tenants.values())


def render_report(
    identity: Identity, version: int, pool: PoolBlocks, tenants: tuple[TenantBlocks, ...], counters: Mapping[str, int],
    reload_error: str | None,
) -> EngineReport:  # fmt: skip
    """The whole report of one engine."""
    return EngineReport(
        pod_uid=identity.pod_uid,
        boot_nonce=identity.boot_nonce,
        policy_version=version,
        pool=pool,
        tenants=tenants,
        counters=dict(counters),
        reload_error=reload_error,
    )


def _render_tenant(tenant: Tenant, running: int, waiting: int) -> TenantBlocks:
    return TenantBlocks(
        name=tenant.name,
        generation=tenant.generation,
        floor=tenant.floor,
        guaranteed_blocks=tenant.guaranteed,
        limit_blocks=tenant.limit,
        owned_blocks=tenant.owned,
        running=running,
        waiting=waiting,
        stale_blocks=tenant.stale_blocks,
        stale_requests=sum(domain.requests for domain in tenant.domains.values() if tenant.is_stale(domain.generation.number)),
    )
