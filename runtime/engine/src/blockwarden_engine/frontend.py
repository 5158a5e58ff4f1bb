"""The middleware in front of vLLM's routes: what it lets through, refuses and answers itself.

Pure ASGI, outermost in vLLM's application (`--middleware`). Only the gateway reaches this port, through mutual TLS; this is
what holds if the gateway does not. Everything is decided before vLLM sees a byte: routes from an allow-list, headers from an
allow-list, a body that is parsed once and handed on as our own serialisation, so that no request can mean two things.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from blockwarden_core import layout
from blockwarden_core.errors import TokenError

from .admission import Admission, length_is_free, process_admission
from .attest import Attester, process_attester
from .body import check_body, parse_body
from .compat import request_fields
from .errors import BodyRefused
from .installed import require_plugin
from .settings import observe_identity

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MODELS_PATH: Final = "/v1/models"
MAX_BODY_BYTES: Final = 8 * 1024 * 1024
LENGTH_FIELDS: Final = ("max_tokens", "max_completion_tokens")
HEADERS_IN: Final = frozenset({b"accept", b"host", layout.REQUEST_ID_HEADER.encode()})
"""Request headers that reach vLLM; it obeys several others (priority, data-parallel rank, session, load metrics, tracing)."""
HEADERS_OUT: Final = frozenset({b"content-type", b"content-length", b"cache-control", layout.REQUEST_ID_HEADER.encode()})


class IsolationMiddleware:
    """Wraps vLLM's application.

    Raises, when it is made:
        PluginMissing, LaunchRefused, DocumentError: this process cannot keep tenants apart, so it must not serve.
    """

    def __init__(self, app: App) -> None:
        require_plugin("API server")
        self._app = app
        self._boot = observe_identity().boot_nonce.encode("ascii")
        self._admission: Admission = process_admission()
        self._attester: Attester = process_attester()
        self._fields = request_fields()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, self._marked(send))
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = (scope["method"], scope["path"])
        if not self._meant_for_us(scope):
            await reply_error(send, 421, "boot_mismatch", "the engine has started again: attest it again")
        elif route == ("GET", layout.ATTESTATION_PATH):
            await reply(send, 200, (await self._attester.attestation()).text().encode())
        elif route == ("GET", MODELS_PATH):
            await self._app(_rebuilt(scope, None), receive, send)
        elif route[0] == "POST" and route[1] in self._fields:
            await self._generate(scope, receive, send)
        else:
            await reply_error(send, 404, "not_found", "there is no such route")

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        share = None
        try:
            raw = await read_body(receive)
            if raw is None:
                return
            body = parse_body(raw)
            _, share = self._admission.admit(body.get("cache_salt"))
            check_body(body, self._fields[scope["path"]])
        except TokenError as error:
            self._admission.refusals.count(error.code)
            await reply_error(send, 403, error.code, str(error))
        except BodyRefused as error:
            self._admission.refusals.count(error.code, share)
            await reply_error(send, error.status, error.code, str(error))
        else:
            length_is_free.set(all(body.get(field) is None for field in LENGTH_FIELDS))
            content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
            await self._app(_rebuilt(scope, content), _replay(content, receive), send)

    def _meant_for_us(self, scope: Scope) -> bool:
        wanted = [value for name, value in scope["headers"] if name == layout.BOOT_HEADER.encode()]
        return all(hmac.compare_digest(value, self._boot) for value in wanted)

    def _marked(self, send: Send) -> Send:
        """`send` that keeps the allow-listed response headers and adds the boot nonce."""

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() in HEADERS_OUT]
                message = {**message, "headers": [*kept, (layout.BOOT_HEADER.encode(), self._boot)]}
            await send(message)

        return marked


async def read_body(receive: Receive) -> bytes | None:
    """The whole request body; None if the client is gone.

    Raises:
        BodyRefused: it is longer than MAX_BODY_BYTES.
    """
    chunks, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise BodyRefused(413, "body_too_large", f"the body has more than {MAX_BODY_BYTES} bytes: send a shorter prompt")
        chunks.append(chunk)
        more = message.get("more_body", False)
    return b"".join(chunks)


async def reply(send: Send, status: int, body: bytes, *, content_type: bytes = b"application/json") -> None:
    """Sends a whole response."""
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def reply_error(send: Send, status: int, code: str, message: str) -> None:
    """Sends a refusal in the shape of docs/protocols.md."""
    error = {"error": {"type": "isolation", "code": code, "message": message}}
    await reply(send, status, json.dumps(error).encode())


def _rebuilt(scope: Scope, content: bytes | None) -> Scope:
    """The scope that vLLM sees: no query, only allow-listed headers, and the headers of the body that we hand on."""
    headers = [(name, value) for name, value in scope["headers"] if name.lower() in HEADERS_IN]
    if content is not None:
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    return {**scope, "headers": headers, "query_string": b""}


def _replay(content: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay
