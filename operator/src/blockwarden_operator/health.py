"""The operator's own port: is the loop alive, and a handful of numbers about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

STALE_SECONDS: Final = 60.0
"""The queue beats at least every ten seconds; a loop that has not for this long is stuck, and the process should be replaced."""


@dataclass(slots=True)
class Health:
    """Heartbeat and counters, fed by the queue and the watches."""

    clock: Callable[[], float]
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    _beat_at: float = field(init=False)
    _event_at: float = field(init=False)
    reconciles: Counter = field(init=False)
    failures: Counter = field(init=False)
    seconds: Histogram = field(init=False)

    def __post_init__(self) -> None:
        self._beat_at = self._event_at = self.clock()
        prefix, registry = "blockwarden_operator_", self.registry
        self.reconciles = Counter(prefix + "reconciles", "Reconciles that succeeded", registry=registry)
        self.failures = Counter(prefix + "reconcile_failures", "Reconciles that failed", registry=registry)
        self.seconds = Histogram(prefix + "reconcile_seconds", "Duration of a reconcile", registry=registry)
        age = Gauge(prefix + "seconds_since_event", "Seconds since the last watch event", registry=registry)
        age.set_function(lambda: self.clock() - self._event_at)

    def watch_queue(self, length: Callable[[], int]) -> None:
        """Export the number of keys that are due, waiting or worked on."""
        depth = Gauge("blockwarden_operator_queue_keys", "Keys known to the queue", registry=self.registry)
        depth.set_function(lambda: float(length()))

    def beat(self) -> None:
        """The queue's loop went round."""
        self._beat_at = self.clock()

    def saw_event(self) -> None:
        """A watch delivered something."""
        self._event_at = self.clock()

    def is_alive(self) -> bool:
        """Whether the queue's loop goes round."""
        return self.clock() - self._beat_at < STALE_SECONDS


def make_app(health: Health) -> web.Application:
    """The HTTP application of the operator's port."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n") if health.is_alive() else web.Response(status=500, text="the queue is stuck\n")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(health.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/metrics", metrics)
    return app
