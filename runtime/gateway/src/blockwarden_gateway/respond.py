"""From the first byte of an engine's answer to the last byte of the client's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .asgi import RawHeaders, Send, refusal_body, send_bytes, start_stream
from .engines.client import Reply
from .errors import Broken, EngineFailed
from .exchange import Exchange
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
            EngineFailed: it ended early or is not one.
        """
        try:
            filtered = self.route.filter_reply(await reply.read(), self.view)
        except Broken as error:
            raise EngineFailed(f"{error}: try again") from None
        self.exchange.tally = filtered.tally
        self.exchange.first_token = self.clock()
        self.started = True
        await send_bytes(self.send, 200, filtered.body or b"", self.headers)

    async def stream(self, reply: Reply) -> None:
        """An event stream. Its head waits for the first event, so that a failure before it still has a status of its own;
        a later one ends the stream with an error event and without `[DONE]`.

        Raises:
            EngineFailed: nothing came, or nothing usable.
        """
        try:
            async for chunk in reply.chunks():
                body = b"".join(map(self._shown, self._parser.feed(chunk)))
                if body:
                    await self._send(body)
            if not self._done:
                raise Broken("the engine's answer ended early")
        except Broken as error:
            failed = EngineFailed(f"{error}: try again")
            if not self.started:
                raise failed from None
            self.exchange.status = failed.status
            await self._send(event(refusal_body(failed)))
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
