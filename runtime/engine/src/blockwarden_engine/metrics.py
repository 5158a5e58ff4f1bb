"""The metrics of an engine's internal port: numbers of its report, and vLLM's own from an allow-list.

One table says what there is: docs/metrics.md explains each line of it, and a test keeps the two equal. Labels are tenants of the
report (those of the policy, and those that left and still have something here), states and reasons from closed sets. vLLM's
registry is not served as it is: it names models and configuration, and grows. What is listed of it counts all tenants together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from blockwarden_core.report import Distribution, EngineReport, TenantBlocks

VLLM_METRICS: Final = frozenset({
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:prompt_tokens",
    "vllm:generation_tokens", "vllm:num_preemptions", "vllm:prefix_cache_queries", "vllm:prefix_cache_hits",
    "vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds", "vllm:request_success",
})  # fmt: skip

Samples = Iterable[tuple[tuple[str, ...], float]]
"""(label values, value) pairs."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name without a counter's `_total`, the sentence that a scrape shows, its labels, where it comes from."""

    name: str
    text: str
    labels: tuple[str, ...]
    read: Callable[[EngineReport], Samples]
    counts: bool = False

    @property
    def kind(self) -> str:
        return "counter" if self.counts else "gauge"

    @property
    def exposed(self) -> str:
        """The name as it is scraped."""
        return f"{self.name}_total" if self.counts else self.name

    def collect(self, report: EngineReport) -> Metric:
        made = (CounterMetricFamily if self.counts else GaugeMetricFamily)(self.name, self.text, labels=self.labels)
        for labels, value in self.read(report):
            made.add_metric(labels, value)
        return made


@dataclass(frozen=True, slots=True)
class HistogramFamily:
    """One histogram."""

    name: str
    text: str
    read: Callable[[EngineReport], Distribution]
    labels: tuple[str, ...] = ()
    kind: str = "histogram"

    @property
    def exposed(self) -> str:
        return self.name

    def collect(self, report: EngineReport) -> Metric:
        made, found, below = HistogramMetricFamily(self.name, self.text), self.read(report), 0
        buckets = []
        for bound, count in zip((*map(str, found.bounds), "+Inf"), found.counts, strict=True):
            below += count
            buckets.append((bound, below))
        made.add_metric((), buckets, found.total)
        return made


def _one(read: Callable[[EngineReport], float]) -> Callable[[EngineReport], Samples]:
    return lambda report: [((), read(report))]


def _counter(name: str) -> Callable[[EngineReport], Samples]:
    """A counter of the engine that begins at 0."""
    return _one(lambda report: report.counters.get(name, 0))


def _tenant(read: Callable[[TenantBlocks], float]) -> Callable[[EngineReport], Samples]:
    return lambda report: [((tenant.name,), read(tenant)) for tenant in report.tenants]


def _tenant_counter(name: str) -> Callable[[EngineReport], Samples]:
    return _tenant(lambda tenant: tenant.counters.get(name, 0))


def _reasons(counters: dict[str, int], name: str, tenant: str) -> Samples:
    return (((tenant, key.removeprefix(f"{name}.")), count) for key, count in counters.items() if key.startswith(f"{name}."))


def _passed_over(report: EngineReport) -> Samples:
    return [sample for tenant in report.tenants for sample in _reasons(tenant.counters, "passed_over", tenant.name)]


def _ended(report: EngineReport) -> Samples:
    named = [sample for tenant in report.tenants for sample in _reasons(tenant.counters, "ended", tenant.name)]
    return [*_reasons(report.counters, "ended", ""), *named]


def _states(report: EngineReport) -> Samples:
    pool = report.pool
    in_use = pool.owned - pool.cached
    yield from ((("clean",), pool.clean), (("in_use",), in_use), (("cached",), pool.cached))
    yield from ((("dirty",), pool.dirty), (("scrubbing",), pool.scrubbing))


FAMILIES: Final[tuple[Family | HistogramFamily, ...]] = (
    Family("blockwarden_pool_blocks", "KV blocks by state", ("state",), _states),
    Family("blockwarden_scrub_backlog_blocks", "Freed KV blocks that are not clean yet", (), _one(lambda r: r.scrub.backlog)),
    Family("blockwarden_scrub_epochs", "Scrub epochs by how far they came", ("stage",), lambda report: [
        (("ordered",), report.scrub.epochs_ordered), (("confirmed",), report.scrub.epochs_confirmed)], counts=True),
    Family("blockwarden_scrubbed_blocks", "KV blocks zeroed, between owners and within one", ("kind",), lambda report: [
        (("between_owners",), report.scrub.blocks), (("in_place",), report.scrub.blocks_in_place)], counts=True),
    Family("blockwarden_scrubbed_bytes", "Bytes of KV cache zeroed, all ranks together", ("kind",), lambda report: [
        (("between_owners",), report.scrub.bytes), (("in_place",), report.scrub.bytes_in_place)], counts=True),
    HistogramFamily("blockwarden_free_to_clean_steps", "Steps from a block's release to its confirmed zeroes",
                    lambda report: report.free_to_clean_steps),
    HistogramFamily("blockwarden_free_to_clean_seconds", "Seconds from a block's release to its confirmed zeroes",
                    lambda report: report.free_to_clean_seconds),
    Family("blockwarden_guard_refusals", "Block tables and prefix hits that named a block of another owner", ("check",),
           lambda report: [(("block_table",), report.counters.get("guard_violations", 0)),
                           (("prefix_hit",), report.counters.get("foreign_hits_refused", 0))], counts=True),
    Family("blockwarden_repaired_blocks", "Blocks that a corrupted table had lost and that were freed", (),
           _counter("blocks_repaired"), counts=True),
    Family("blockwarden_preemption_vetoes", "Preemptions across tenants that were vetoed", (), _counter("preemption_vetoes"),
           counts=True),
    Family("blockwarden_admission_refusals", "Requests refused before they reached the scheduler", ("tenant", "reason"),
           lambda report: [((found.tenant, found.reason), found.count) for found in report.refusals], counts=True),
    Family("blockwarden_requests_ended", "Requests that the scheduler ended with an error", ("tenant", "reason"), _ended,
           counts=True),
    Family("blockwarden_tenant_state", "1 for the state in which the tenant is", ("tenant", "state"),
           lambda report: [((tenant.name, tenant.state.lower()), 1) for tenant in report.tenants]),
    Family("blockwarden_tenant_owned_blocks", "KV blocks that the tenant holds, cached ones included", ("tenant",),
           _tenant(lambda tenant: tenant.owned_blocks)),
    Family("blockwarden_tenant_cached_blocks", "KV blocks of the tenant that no request uses", ("tenant",),
           _tenant(lambda tenant: tenant.cached_blocks)),
    Family("blockwarden_tenant_guaranteed_blocks", "KV blocks that are the tenant's at all times", ("tenant",),
           _tenant(lambda tenant: tenant.guaranteed_blocks)),
    Family("blockwarden_tenant_limit_blocks", "KV blocks that the tenant can hold at most", ("tenant",),
           _tenant(lambda tenant: tenant.limit_blocks)),
    Family("blockwarden_tenant_running", "Requests of the tenant that run", ("tenant",), _tenant(lambda tenant: tenant.running)),
    Family("blockwarden_tenant_waiting", "Requests of the tenant that wait", ("tenant",), _tenant(lambda tenant: tenant.waiting)),
    Family("blockwarden_tenant_preemptions", "Requests of the tenant that gave way to another of its own", ("tenant",),
           _tenant_counter("preemptions"), counts=True),
    Family("blockwarden_tenant_passed_over", "Steps in which the queue went on behind the tenant's first waiting request",
           ("tenant", "reason"), _passed_over, counts=True),
    Family("blockwarden_tenant_scrub_waits", "Steps that a running request of the tenant sat out for a scrub", ("tenant",),
           _tenant_counter("waits_for_scrub"), counts=True),
    Family("blockwarden_tenant_guard_refusals", "Block tables of the tenant's requests that the guard refused", ("tenant",),
           _tenant_counter("guard_refusals"), counts=True),
    Family("blockwarden_tenant_generation", "Salt generation in use", ("tenant",), _tenant(lambda tenant: tenant.generation)),
    Family("blockwarden_tenant_floor", "Oldest salt generation that is admitted", ("tenant",),
           _tenant(lambda tenant: tenant.floor)),
    Family("blockwarden_tenant_stale_blocks", "Blocks of retired generations, or of a tenant that left, not confirmed zero",
           ("tenant",), _tenant(lambda tenant: tenant.stale_blocks)),
    Family("blockwarden_tenant_stale_requests", "Unfinished requests of retired generations, or of a tenant that left",
           ("tenant",), _tenant(lambda tenant: tenant.stale_requests)),
    Family("blockwarden_policy_version", "Version of the policy in force", (), _one(lambda report: report.policy_version)),
    Family("blockwarden_policy_reload_failed", "1 while a mounted file cannot be used", (),
           _one(lambda report: report.reload_error is not None)),
    Family("blockwarden_policy_reload_errors", "Mounted policies that could not be used", ("reason",),
           lambda report: [((reason,), count) for reason, count in sorted(report.reload_errors.items())], counts=True),
)  # fmt: skip


def render_metrics(report: EngineReport, vllm: Iterable[Metric]) -> bytes:
    """The metrics page, in Prometheus' text format.

    Args:
        report: the engine's report.
        vllm: vLLM's metric families; those that are not listed are left out.
    """
    registry = CollectorRegistry(auto_describe=False)
    ours = [family.collect(report) for family in FAMILIES]
    registry.register(_Fixed([*ours, *(family for family in vllm if family.name in VLLM_METRICS)]))
    return generate_latest(registry)


class _Fixed(Collector):
    """A collector of families that are there already."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
