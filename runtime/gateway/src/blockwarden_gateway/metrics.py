"""Prometheus metrics of one gateway process.

Labels are names of the policy in force and of the route table, so their number is bounded by the policy; series of a tenant
that leaves it are dropped. Nothing here holds a salt, a prompt or a user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from .exchange import UNKNOWN, Exchange

PREFIX: Final = "blockwarden_gateway_"
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Counters that the pipeline moves, and gauges that are set when somebody asks."""

    def __init__(self) -> None:
        # Otherwise every series comes twice, once with the time it began.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Answered requests", "tenant", "route", "status")
        self.tokens = self._counter("tokens", "Tokens of answers, as engines counted them", "tenant", "kind")
        self.seconds = self._histogram("request_seconds", "From a request's head to its last byte")
        self.first_token = self._histogram("first_token_seconds", "From a request's head to its first content")
        self.retries = self._counter("retries", "Requests sent again before their first byte", "reason")
        self.reloads = self._counter("reloads", "Reloads of mounted files", "result")
        self.attestations = self._counter("attestations", "Attestations of engine endpoints", "result")
        self.generation = self._gauge("salt_generation", "Salt generation in use for new requests", "tenant")
        self.in_flight = self._gauge("in_flight", "Dispatched requests not yet answered", "tenant", "generation")
        self.engines = self._gauge("engines", "Engine endpoints by whether they may get traffic", "attested")
        self.versions = self._gauge("engine_versions", "Attested engines by what they say they run", "plugin", "vllm")

    def account(self, exchange: Exchange, seconds: float) -> None:
        """Counts one finished request that took `seconds`."""
        tenant, route, tally = exchange.tenant, exchange.route, exchange.tally
        self.requests.labels(tenant, route, str(exchange.status)).inc()
        self.seconds.labels(tenant, route).observe(seconds)
        if exchange.first_token is not None:
            self.first_token.labels(tenant, route).observe(exchange.first_token - exchange.started)
        if tally is not None:
            for kind, count in (("prompt", tally.prompt), ("completion", tally.completion), ("cached", tally.cached)):
                self.tokens.labels(tenant, kind).inc(count)

    def show(
        self, generations: Mapping[str, int], in_flight: Mapping[str, Mapping[str, int]], engines: Mapping[bool, int],
        versions: Mapping[tuple[str, str], int],
    ) -> bytes:  # fmt: skip
        """The exposition text, with the gauges at these values."""
        self.versions.clear()
        for (plugin, vllm), count in versions.items():
            self.versions.labels(plugin, vllm).set(count)
        self.generation.clear()
        self.in_flight.clear()
        for tenant, generation in generations.items():
            self.generation.labels(tenant).set(generation)
        for tenant, counts in in_flight.items():
            for name, count in counts.items():
                self.in_flight.labels(tenant, name).set(count)
        for attested in (True, False):
            self.engines.labels(str(attested).lower()).set(engines.get(attested, 0))
        return generate_latest(self.registry)

    def keep(self, tenants: frozenset[str]) -> None:
        """Drops the series of tenants that are not in `tenants`."""
        known = {
            sample.labels["tenant"]
            for family in self.requests.collect()
            for sample in family.samples
            if sample.labels["tenant"] not in tenants | {UNKNOWN}
        }
        for tenant in known:
            for metric in (self.requests, self.tokens, self.seconds, self.first_token):
                metric.remove_by_labels({"tenant": tenant})

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(PREFIX + name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(PREFIX + name, text, ("tenant", "route"), registry=self.registry, buckets=_SECONDS)
