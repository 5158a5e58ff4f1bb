"""The engine's internal port: health, metrics and status, over TLS, in the process of the API server.

Reachable for the operator, monitoring and the kubelet (NetworkPolicy), without a client certificate: the kubelet has none. It
answers numbers and identifiers only.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import uvicorn
from prometheus_client import REGISTRY

from blockwarden_core import layout

from .attest import Attester
from .bounded import BoundedProtocol
from .errors import PluginMissing
from .frontend import reply
from .metrics import render_metrics

TEXT: Final = b"text/plain; charset=utf-8"
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class InternalApp:
    """The ASGI application of the internal port."""

    def __init__(self, attester: Attester) -> None:
        self._attester = attester

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            await self._answer(scope["method"], scope["path"], send)
        except PluginMissing as error:
            await reply(send, 503, str(error).encode(), content_type=TEXT)

    async def _answer(self, method: str, path: str, send: Send) -> None:
        if method != "GET":
            await reply(send, 404, b"not found", content_type=TEXT)
        elif path in (layout.LIVEZ_PATH, layout.READYZ_PATH):
            alive = self._attester.alive()
            await reply(send, 200 if alive else 503, b"ok" if alive else b"the engine core does not answer", content_type=TEXT)
        elif path == layout.STATUS_PATH:
            await reply(send, 200, (await self._attester.report()).text().encode())
        elif path == layout.METRICS_PATH:
            page = render_metrics(await self._attester.report(), REGISTRY.collect())
            await reply(send, 200, page, content_type=b"text/plain; version=0.0.4; charset=utf-8")
        else:
            await reply(send, 404, b"not found", content_type=TEXT)


class _QuietServer(uvicorn.Server):
    """A server that leaves signals to the API server in whose process it runs."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()


def make_server(attester: Attester, tls: ssl.SSLContext, *, host: str, port: int) -> uvicorn.Server:
    """A server for the internal port, not started yet."""
    config = uvicorn.Config(
        InternalApp(attester), host=host, port=port, log_level="warning", access_log=False, lifespan="off",
        server_header=False, http=BoundedProtocol, ws="none", ssl_context_factory=lambda _config, _default: tls,
    )  # fmt: skip
    return _QuietServer(config)


async def serve(server: uvicorn.Server) -> None:
    """Serves until cancelled."""
    try:
        await server.serve()
    except asyncio.CancelledError:
        server.should_exit = True
        raise
