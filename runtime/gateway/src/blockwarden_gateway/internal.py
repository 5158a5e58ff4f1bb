"""The internal port: health for the kubelet, metrics for monitoring, the rotation's status for the operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST

from blockwarden_core import layout
from blockwarden_core.report import GatewayReport

from .asgi import JSON, Receive, Scope, Send, send_bytes, send_closed
from .dispatch import Dispatcher
from .engines.fleet import Fleet
from .metrics import Metrics
from .mounts import Mounts
from .tls import Certificates

TEXT: Final = b"text/plain; charset=utf-8"
Answer = tuple[int, bytes, bytes]


class Internal:
    """The ASGI application of the internal port. `draining` is set when the process was told to end."""

    def __init__(
        self,
        *,
        pod_uid: str,
        mounts: Mounts,
        certificates: Certificates,
        fleet: Fleet,
        dispatcher: Dispatcher,
        metrics: Metrics,
    ) -> None:
        self._pod_uid, self._mounts, self._certificates = pod_uid, mounts, certificates
        self._fleet, self._dispatcher, self._metrics = fleet, dispatcher, metrics
        self.draining = False
        self._routes: Mapping[str, Callable[[], Answer]] = {
            layout.LIVEZ_PATH: lambda: (200, TEXT, b"ok\n"),
            layout.READYZ_PATH: self._readyz,
            layout.METRICS_PATH: self._exposition,
            layout.STATUS_PATH: lambda: (200, JSON, self.report().text().encode()),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        route = self._routes.get(scope["path"]) if scope["method"] == "GET" else None
        if route is None:
            await send_closed(send)
            return
        status, kind, body = route()
        await send_bytes(send, status, body, [], kind)

    def report(self) -> GatewayReport:
        material = self._mounts.material
        return GatewayReport(
            pod_uid=self._pod_uid,
            policy_version=material.policy.version,
            secret_id=material.keyring.current.id,
            generations=dict(material.keyring.generations),
            in_flight=self._dispatcher.in_flight.by_tenant,
            engines=self._fleet.seen,
            reload_error="; ".join(filter(None, (self._mounts.error, self._certificates.error))) or None,
        )

    def _readyz(self) -> Answer:
        """Ready from the first attested engine on: before it, another gateway pod serves better; later, an answer that says
        why nothing is served is better than none."""
        if self.draining:
            return 503, TEXT, b"draining\n"
        if not self._fleet.ever_attested:
            return 503, TEXT, b"no engine has been attested yet\n"
        return 200, TEXT, b"ok\n"

    def _exposition(self) -> Answer:
        material = self._mounts.material
        engines = Counter(engine.attested for engine in self._fleet.seen)
        body = self._metrics.show(
            material.keyring.generations, self._dispatcher.in_flight.by_tenant, engines, self._fleet.versions
        )
        return 200, CONTENT_TYPE_LATEST.encode(), body
