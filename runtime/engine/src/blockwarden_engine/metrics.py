"""The metrics of an engine's internal port: numbers of its report, and vLLM's own from an allow-list.

vLLM's registry is not served as it is: it names models and configuration, and grows. What is listed here counts all tenants
together; what is per tenant comes from the report.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from blockwarden_core.report import EngineReport

VLLM_METRICS: Final = frozenset({
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:prompt_tokens",
    "vllm:generation_tokens", "vllm:num_preemptions", "vllm:prefix_cache_queries", "vllm:prefix_cache_hits",
    "vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds", "vllm:request_success",
})  # fmt: skip
TENANT_GAUGES: Final = (
    "generation", "floor", "guaranteed_blocks", "limit_blocks", "owned_blocks", "running", "waiting", "stale_blocks",
    "stale_requests",
)  # fmt: skip


def render_metrics(report: EngineReport, vllm: Iterable[Metric]) -> bytes:
    """The metrics page, in Prometheus' text format.

    Args:
        report: the engine's report.
        vllm: vLLM's metric families; those that are not listed are left out.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fixed([*_report_families(report), *(family for family in vllm if family.name in VLLM_METRICS)]))
    return generate_latest(registry)


class _Fixed(Collector):
    """A collector of families that are there already."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _report_families(report: EngineReport) -> Iterable[Metric]:
    blocks = GaugeMetricFamily("blockwarden_pool_blocks", "KV blocks by state", labels=["state"])
    for state, count in report.pool.model_dump().items():
        if state != "total":
            blocks.add_metric([state], count)
    yield blocks
    for name in TENANT_GAUGES:
        gauge = GaugeMetricFamily(f"blockwarden_tenant_{name}", f"{name.replace('_', ' ')} of a tenant", labels=["tenant"])
        for tenant in report.tenants:
            gauge.add_metric([tenant.name], getattr(tenant, name))
        yield gauge
    for name, count in sorted(report.counters.items()):
        counter = CounterMetricFamily(f"blockwarden_{name}", f"{name.replace('_', ' ')} since start")
        counter.add_metric([], count)
        yield counter
    yield GaugeMetricFamily("blockwarden_policy_version", "version of the policy in force", value=report.policy_version)
    stale = float(report.reload_error is not None)
    yield GaugeMetricFamily("blockwarden_policy_reload_failed", "1 while the mounted policy cannot be used", value=stale)
