"""The public port: one pipeline for every request.

authenticate → resolve tenant, scope and limits → parse → rebuild → salt → choose engine → forward → filter → account
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from blockwarden_core import layout

from .asgi import RawHeaders, Receive, Scope, Send, read_body, send_bytes, send_closed, send_refusal, while_connected
from .auth import authenticate
from .dispatch import Dispatcher, Job
from .errors import ClientGone, EngineUnavailable, GatewayFailed, Refusal, SaltUnavailable
from .exchange import CLIENT_GONE, UNKNOWN, Exchange
from .grants import resolve_sharing, served_model
from .headers import Headers
from .limits import Limiter
from .logs import Log
from .material import Material
from .metrics import Metrics
from .mounts import Mounts
from .respond import Responder
from .routes import ModelsRoute, Route, find_route
from .routes.call import View
from .routes.models import render_model, render_models
from .settings import Settings

CLOSED: Final = "closed"
"""The route in metrics of whatever is not served."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What every request shares. `clock` is monotonic, in seconds."""

    settings: Settings
    mounts: Mounts
    dispatcher: Dispatcher
    log: Log
    metrics: Metrics
    limiter: Limiter
    clock: Callable[[], float]


class Gateway:
    """The ASGI application of the public port."""

    def __init__(
        self, settings: Settings, *, mounts: Mounts, dispatcher: Dispatcher, log: Log, metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._parts = Parts(settings, mounts, dispatcher, log, metrics, Limiter(clock), clock)
        mounts.on_change(self._forget_tenants)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        parts = self._parts
        route = find_route(scope["method"], scope["path"])
        if route is None:
            parts.metrics.requests.labels(UNKNOWN, CLOSED, "404").inc()
            await send_closed(send)
            return
        exchange = Exchange(f"gw-{secrets.token_hex(16)}", route.name, parts.clock())
        await _Pipeline(parts, route, exchange, Headers(scope["headers"]), receive, send).run()
        self._account(exchange)

    def _forget_tenants(self, material: Material) -> None:
        tenants = frozenset(material.tenants)
        self._parts.limiter.keep(tenants)
        self._parts.metrics.keep(tenants)

    def _account(self, exchange: Exchange) -> None:
        parts = self._parts
        seconds = parts.clock() - exchange.started
        parts.metrics.account(exchange, seconds)
        if exchange.sent_bytes:
            parts.limiter.spend(exchange.tenant, exchange.tokens)
        if exchange.tenant == UNKNOWN:
            return  # counted, but not logged: anybody could fill a disk with these
        tally = exchange.tally
        parts.log.write(
            "request",
            id=exchange.request_id,
            tenant=exchange.tenant,
            route=exchange.route,
            status=exchange.status,
            seconds=round(seconds, 6),
            engine=exchange.engine,
            prompt_tokens=tally.prompt if tally else None,
            completion_tokens=tally.completion if tally else None,
        )


class _Pipeline:
    """One request."""

    __slots__ = ("_exchange", "_headers", "_parts", "_receive", "_responder", "_route", "_send")

    def __init__(self, parts: Parts, route: Route, exchange: Exchange, headers: Headers, receive: Receive, send: Send) -> None:
        self._parts, self._route, self._exchange = parts, route, exchange
        self._headers, self._receive, self._send = headers, receive, send
        self._responder: Responder | None = None

    @property
    def _own_headers(self) -> RawHeaders:
        return [(layout.REQUEST_ID_HEADER.encode(), self._exchange.request_id.encode())]

    async def run(self) -> None:
        """Serves the request; whatever goes wrong becomes an answer."""
        try:
            await self._serve()
            self._exchange.status = self._exchange.status or 200
        except Refusal as refusal:
            await self._refuse(refusal)
        except ClientGone:
            self._exchange.status = CLIENT_GONE
        except SaltUnavailable as error:
            self._parts.log.write("salt_unavailable", id=self._exchange.request_id, problem=str(error))
            await self._refuse(EngineUnavailable("this tenant is not set up completely yet: try again", retry_after=2))
        except Exception as error:
            # The message of an error that nobody expected may hold anything: its type must do.
            self._parts.log.write("failure", id=self._exchange.request_id, error=type(error).__name__)
            await self._refuse(GatewayFailed("the gateway failed to serve this request: try again"))

    async def _refuse(self, refusal: Refusal) -> None:
        self._exchange.status = refusal.status
        if self._responder is None or not self._responder.started:
            await send_refusal(self._send, refusal, self._own_headers)

    async def _serve(self) -> None:
        parts, material = self._parts, self._parts.mounts.material
        subject = authenticate(self._headers, material)
        tenant = material.tenants[subject.tenant]
        self._exchange.tenant = tenant.name
        with parts.limiter.admitted(tenant.name, tenant.limits):
            if isinstance(self._route, ModelsRoute):
                name = self._route.model
                body = render_models(tenant, material.policy) if name is None else render_model(name, tenant, material.policy)
                await send_bytes(self._send, 200, body, self._own_headers)
                return
            sharing = resolve_sharing(subject, tenant.scope, self._headers, lambda: secrets.token_hex(16))
            settings = parts.settings
            body = await read_body(self._headers, self._receive, limit=settings.max_body, seconds=settings.body_seconds)
            call = self._route.parse(body)
            job = Job(self._route, call, served_model(call.model, tenant, material.policy), sharing)
            await while_connected(self._receive, self._forward(job, material))

    async def _forward(self, job: Job, material: Material) -> None:
        view = View(
            id=job.route.prefix + self._exchange.request_id,
            model=job.call.model,
            expose_cached=material.policy.expose_cached_tokens,
            include_usage=job.call.include_usage,
        )
        parts = self._parts
        self._responder = Responder(job.route, view, self._send, self._own_headers, self._exchange, parts.clock)
        async with parts.dispatcher.answer(job, self._exchange) as reply:
            if job.call.stream:
                await self._responder.stream(reply)
            else:
                await self._responder.whole(reply)
