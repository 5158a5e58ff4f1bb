"""The ASGI side of the gateway: reading a bounded body, noticing that the client left, sending an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Final, TypeVar

import msgspec

from .errors import BodyTimeout, BodyTooLarge, ClientGone, EncodingRefused, Refusal
from .headers import Headers

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]
T = TypeVar("T")

JSON: Final = b"application/json"
EVENT_STREAM: Final = b"text/event-stream; charset=utf-8"
CLOSED_BODY: Final = (
    b'{"error":{"message":"there is nothing here","type":"invalid_request_error","param":null,"code":"not_found"}}'
)


async def read_body(headers: Headers, receive: Receive, *, limit: int, seconds: float) -> bytes:
    """The request's body.

    Raises:
        BodyTooLarge, BodyTimeout, EncodingRefused: with the answer for the client.
        ClientGone: it left before the body was complete.
    """
    if headers.one("content-encoding") not in (None, "identity"):
        raise EncodingRefused("the body is compressed: send it as plain JSON", param="content-encoding")
    length = headers.one("content-length") or ""
    if length.isdecimal() and int(length) > limit:
        raise BodyTooLarge(f"the body is larger than {limit} bytes: send a smaller one")
    try:
        async with asyncio.timeout(seconds):
            return await _collect(receive, limit)
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive within {seconds:g} seconds: send it faster") from None


async def _collect(receive: Receive, limit: int) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("the client left while it sent its body")
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise BodyTooLarge(f"the body is larger than {limit} bytes: send a smaller one")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled at once when the client leaves.

    Raises:
        ClientGone: it left first.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone("the client left before its answer was complete")
    finally:
        await _cancelled(working, watching)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def send_bytes(send: Send, status: int, body: bytes, headers: RawHeaders, kind: bytes = JSON) -> None:
    """A whole answer."""
    fixed = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": fixed + headers})
    await send({"type": "http.response.body", "body": body})


async def start_stream(send: Send, headers: RawHeaders) -> None:
    """The head of an event stream; proxies in between are asked not to hold it back."""
    fixed = [(b"content-type", EVENT_STREAM), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": fixed + headers})


async def send_closed(send: Send) -> None:
    """The one answer for whatever is not served: the same for a route of the engine and for one that never was."""
    await send_bytes(send, 404, CLOSED_BODY, [])


async def send_refusal(send: Send, refusal: Refusal, headers: RawHeaders) -> None:
    extra: RawHeaders = []
    if refusal.status == 401:
        extra.append((b"www-authenticate", b"Bearer"))
    if refusal.retry_after is not None:
        extra.append((b"retry-after", str(refusal.retry_after).encode()))
    await send_bytes(send, refusal.status, refusal_body(refusal), headers + extra)


def refusal_body(refusal: Refusal) -> bytes:
    """A refusal in OpenAI's shape."""
    error = {"message": refusal.message, "type": refusal.type, "param": refusal.param, "code": refusal.code}
    return msgspec.json.encode({"error": error})
