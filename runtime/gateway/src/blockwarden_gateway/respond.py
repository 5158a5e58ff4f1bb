"""From the first byte of an engine's answer to the last byte of the client's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .asgi import RawHeaders, Send, refusal_body, send_bytes, start_stream
from .engines.client import Reply
from .errors import Broken, EngineFailed, Refusal, Reported
from .exchange import Exchange
from .plain import plain_refusal
from .routes.call import GenerationRoute, View
from .sse import DONE, EventParser, event


@dataclass(slots=True)
class Responder:
    """Sends one answer; every byte has gone through the route's filter."""

    route: GenerationRoute
    view: View
    send: Send
    headers: RawHeaders
    exchange: Exchange
    clock: Callable[[], float]
    started: bool = False
    _parser: EventParser = field(default_factory=EventParser)
    _done: bool = False

    async def whole(self, reply: Reply) -> None:
        """A complete answer.

        Raises:
            Refusal: it ended early, is not one, or holds an error.
        """
        try:
            filtered = self.route.filter_reply(await reply.read(), self.view)
        except Broken as error:
            raise _refusal(error) from None
        self.exchange.tally = filtered.tally
        self.exchange.first_token = self.clock()
        self.started = True
        await send_bytes(self.send, 200, filtered.body or b"", self.headers)

    async def stream(self, reply: Reply) -> None:
        """An event stream. Its head waits for the first event, so that a failure before it still has a status of its own;
        a later one ends the stream with an error event and without `[DONE]`.

        Raises:
            Refusal: nothing came, nothing usable, or an error.
        """
        try:
            async for chunk in reply.chunks():
                body = b"".join(map(self._shown, self._parser.feed(chunk)))
                if body:
                    await self._send(body)
            if not self._done:
                raise Broken("the engine's answer ended early")
        except Broken as error:
            refusal = _refusal(error)
            if not self.started:
                raise refusal from None
            self.exchange.status = refusal.status
            await self._send(event(refusal_body(refusal)))
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    def _shown(self, data: bytes) -> bytes:
        if data == DONE:
            self._done = True
            return event(DONE)
        filtered = self.route.filter_event(data, self.view)
        self.exchange.tally = filtered.tally or self.exchange.tally
        if filtered.content:
            self.exchange.events += 1
            self.exchange.first_token = self.exchange.first_token or self.clock()
        return event(filtered.body) if filtered.body else b""

    async def _send(self, body: bytes) -> None:
        if not self.started:
            self.started = True
            await start_stream(self.send, self.headers)
        await self.send({"type": "http.response.body", "body": body, "more_body": True})


def _refusal(error: Broken) -> Refusal:
    if isinstance(error, Reported):
        return plain_refusal(error.status, error.body)
    return EngineFailed(f"{error}: try again")
