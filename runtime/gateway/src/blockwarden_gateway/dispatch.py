"""From a parsed request to the first byte of an engine's answer.

Everything that may be tried again is tried again here, each cause once, and only while nothing has reached the client.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from blockwarden_core import layout
from blockwarden_core.identity import Sharing

from .engines.client import Reply, Request, Upstream
from .engines.fleet import Engine, Fleet
from .engines.routing import routing_key
from .errors import Broken, Disconnected, EngineFailed, EngineUnavailable, Refusal, Unreachable
from .exchange import Exchange
from .inflight import InFlight
from .metrics import Metrics
from .mounts import Mounts
from .plain import is_retired, plain_refusal
from .routes.call import Call, GenerationRoute
from .salting import Salted, salt_for


class Again(enum.StrEnum):
    """Why a request is sent a second time."""

    UNREACHABLE = "unreachable"
    RESTARTED = "restarted"
    STALE_CONNECTION = "stale_connection"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class Job:
    """One request on its way to an engine; `model` is the engine's name of it."""

    route: GenerationRoute
    call: Call
    model: str
    sharing: Sharing


class Dispatcher:
    def __init__(self, *, mounts: Mounts, fleet: Fleet, upstream: Upstream, metrics: Metrics) -> None:
        self._mounts, self._fleet, self._upstream, self._metrics = mounts, fleet, upstream, metrics
        self.in_flight = InFlight()

    @asynccontextmanager
    async def answer(self, job: Job, exchange: Exchange) -> AsyncIterator[Reply]:
        """The engine's answer of status 200, of which nothing has been read; leaving the context ends the exchange.

        Raises:
            Refusal: the engine refused, failed, or none is there.
        """
        tried: set[Again] = set()
        while True:
            salted = salt_for(job.sharing, self._mounts.material)
            with self.in_flight.counted(salted):
                engine = self._fleet.pick(routing_key(salted.salt, job.call.beginning))
                with engine.carrying():
                    fresh = Again.STALE_CONNECTION in tried
                    reply = await self._attempt(job, salted, engine, exchange, fresh=fresh)
                    if not isinstance(reply, Again):
                        try:
                            yield reply
                        finally:
                            reply.close()
                        return
            self._check_again(reply, tried, salted, job)

    async def _attempt(self, job: Job, salted: Salted, engine: Engine, exchange: Exchange, *, fresh: bool) -> Reply | Again:
        body = job.call.upstream(model=job.model, cache_salt=salted.token)
        exchange.engine, exchange.sent_bytes = engine.pod_uid, len(body)
        request = Request(job.route.path, body, render_headers(exchange.request_id, engine.nonce or ""))
        try:
            reply = await self._upstream.send(self._fleet.target(engine), request, fresh=fresh)
        except Unreachable as error:
            self._fleet.doubt(engine, str(error))
            return Again.UNREACHABLE
        except Disconnected as error:
            if error.reused:
                return Again.STALE_CONNECTION
            raise EngineFailed("the engine ended the connection before it answered: try again") from None
        try:
            return await self._judge(reply, engine)
        except Refusal:
            exchange.sent_bytes = 0  # what an engine refused costs the tenant nothing
            raise

    async def _judge(self, reply: Reply, engine: Engine) -> Reply | Again:
        """A reply of status 200 from the process that was attested, or why to try again."""
        if reply.status == 421 or reply.boot != engine.nonce:
            reply.close()
            self._fleet.doubt(engine, "another process answers at its address")
            return Again.RESTARTED
        if reply.status == 200:
            return reply
        try:
            body = await reply.read()
        except Broken:
            body = b""
        finally:
            reply.close()
        if is_retired(reply.status, body):
            return Again.RETIRED
        raise plain_refusal(reply.status, body)

    def _check_again(self, why: Again, tried: set[Again], salted: Salted, job: Job) -> None:
        """Allows one more attempt.

        Raises:
            EngineFailed, EngineUnavailable: this cause was tried before, or nothing has changed since.
        """
        if why in tried:
            raise EngineFailed("the engine failed twice to answer: try again")
        if why is Again.RETIRED and salt_for(job.sharing, self._mounts.reload()).token == salted.token:
            raise EngineUnavailable("the salt is being rotated: try again shortly", retry_after=1)
        tried.add(why)
        self._metrics.retries.labels(why.value).inc()


def render_headers(request_id: str, nonce: str) -> dict[str, str]:
    """Every header that an engine gets from us; none is the client's."""
    return {
        "content-type": "application/json",
        layout.REQUEST_ID_HEADER: request_id,
        layout.BOOT_HEADER: nonce,
    }
