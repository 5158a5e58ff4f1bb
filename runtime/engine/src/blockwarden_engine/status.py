"""The engine's report: what the ledger and the queues say, as the operator reads it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from blockwarden_core.report import Distribution, EngineReport, PoolBlocks, ScrubCounters, TenantBlocks, TenantState

from .domains import Tenant
from .latency import Histogram
from .ledger import Ledger
from .settings import Identity


def render_pool(ledger: Ledger) -> PoolBlocks:
    """All blocks by state."""
    return PoolBlocks(
        total=ledger.size,
        clean=ledger.clean,
        owned=ledger.in_use + ledger.cached,
        dirty=len(ledger.dirty),
        scrubbing=ledger.scrubbing,
        cached=ledger.cached,
    )


def render_scrub(ledger: Ledger, counters: Mapping[str, int], block_bytes: int) -> ScrubCounters:
    """What was scrubbed, and what waits; `block_bytes` is a block's footprint in all ranks together."""
    blocks, in_place = counters.get("blocks_scrubbed", 0), counters.get("blocks_zeroed_in_place", 0)
    return ScrubCounters(
        epochs_ordered=ledger.epoch,
        epochs_confirmed=ledger.acknowledged,
        blocks=blocks,
        blocks_in_place=in_place,
        bytes=blocks * block_bytes,
        bytes_in_place=in_place * block_bytes,
        backlog=len(ledger.dirty) + ledger.scrubbing,
    )


def render_histogram(histogram: Histogram) -> Distribution:
    """A histogram as a document."""
    return Distribution(bounds=histogram.bounds, counts=tuple(histogram.counts), total=histogram.total)


def render_tenants(ledger: Ledger, running: Iterable[Any], waiting: Iterable[Any]) -> tuple[TenantBlocks, ...]:
    """Every tenant of the policy, and those de-registered that still have something here."""
    runs = Counter(request.trust_domain.tenant for request in running)
    waits = Counter(request.trust_domain.tenant for request in waiting if request.trust_domain is not None)
    return tuple(_render_tenant(tenant, runs[tenant], waits[tenant]) for tenant in ledger.tenants.values())


def render_report(
    identity: Identity, version: int, ledger: Ledger, tenants: tuple[TenantBlocks, ...], counters: Mapping[str, int],
    block_bytes: int,
) -> EngineReport:  # fmt: skip
    """The report of one engine, without what only its mounted files say."""
    return EngineReport(
        pod_uid=identity.pod_uid,
        boot_nonce=identity.boot_nonce,
        policy_version=version,
        pool=render_pool(ledger),
        tenants=tenants,
        counters=dict(counters),
        scrub=render_scrub(ledger, counters, block_bytes),
        free_to_clean_steps=render_histogram(ledger.latency.steps),
        free_to_clean_seconds=render_histogram(ledger.latency.seconds),
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
        state=_state(tenant),
        cached_blocks=len(tenant.lru),
        counters=dict(tenant.counters),
    )


def _state(tenant: Tenant) -> TenantState:
    if tenant.registered:
        return TenantState.SERVING
    return TenantState.DRAINING if tenant.requests else TenantState.CLEARING
