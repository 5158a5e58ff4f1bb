"""The narrow interface to one engine: a request in, an answer out. aiohttp is known here and nowhere else."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Final, Protocol

import aiohttp

from blockwarden_core import layout
from blockwarden_gateway.errors import Broken, Disconnected, Unreachable

IDLE_SECONDS: Final = 3.0
"""How long an idle connection is kept: less than the 5 s after which vLLM's server closes it."""
CONNECT_SECONDS: Final = 5.0
SILENCE_SECONDS: Final = 900.0
"""How long an engine may say nothing while it works on a request."""
MAX_REPLY: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes: an address (`ip:port`) and the name that its certificate must carry."""

    address: str
    server_name: str


@dataclass(frozen=True, slots=True)
class Request:
    """A POST of `body`, or a GET where it is None, with these headers and no others of the gateway's choosing."""

    path: str
    body: bytes | None
    headers: Mapping[str, str]


class Reply(Protocol):
    """The head of an answer; its body is read once, or the reply is closed."""

    @property
    def status(self) -> int: ...

    @property
    def boot(self) -> str | None:
        """The boot nonce of the engine process that answers."""
        ...

    async def read(self) -> bytes:
        """The whole body. Raises Broken: it ended early or is larger than MAX_REPLY."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives; reading stops the sender when nobody consumes. Raises Broken: it ended early."""
        ...

    def close(self) -> None:
        """Ends the exchange. Without having read everything, this closes the connection, which ends the request there."""
        ...


class Upstream(Protocol):
    async def send(self, target: Target, request: Request, *, seconds: float | None = None, fresh: bool = False) -> Reply:
        """Sends one request; `seconds` bounds the whole exchange, `fresh` asks for a connection that nobody used before.

        Raises:
            Unreachable: no connection. Disconnected: one that ended before the first byte of an answer.
        """
        ...


class _AiohttpReply:
    __slots__ = ("_response",)

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def boot(self) -> str | None:
        return self._response.headers.get(layout.BOOT_HEADER)

    async def read(self) -> bytes:
        parts, size = [], 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > MAX_REPLY:
                raise Broken("the engine's answer is too large")
            parts.append(chunk)
        return b"".join(parts)

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError):
            raise Broken("the engine's answer ended early") from None

    def close(self) -> None:
        if self._response.content.is_eof():
            self._response.release()
        else:
            self._response.close()


class AiohttpUpstream:
    """Connections to every engine, kept while they are used."""

    def __init__(self, context: Callable[[], ssl.SSLContext]) -> None:
        """`context` gives the client context in force; a new one makes new connections."""
        self._context = context
        self._kept = _session(aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS))
        self._fresh = _session(aiohttp.TCPConnector(limit=0, force_close=True))

    async def send(self, target: Target, request: Request, *, seconds: float | None = None, fresh: bool = False) -> Reply:
        marks = SimpleNamespace(reused=False)
        session = self._fresh if fresh else self._kept
        try:
            response = await session.request(
                "GET" if request.body is None else "POST",
                f"https://{target.address}{request.path}",
                data=request.body,
                headers={"host": target.server_name, **request.headers},
                ssl=self._context(),
                server_hostname=target.server_name,
                allow_redirects=False,
                trace_request_ctx=marks,
                timeout=aiohttp.ClientTimeout(total=seconds, connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS),
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(_why(error)) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            name = type(error).__name__
            raise Disconnected(f"the engine ended the connection ({name})", reused=marks.reused) from None
        return _AiohttpReply(response)

    async def close(self) -> None:
        await self._kept.close()
        await self._fresh.close()


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    tracing = aiohttp.TraceConfig()
    tracing.on_connection_reuseconn.append(_mark_reused)
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        auto_decompress=False,
        trust_env=False,
        trace_configs=[tracing],
    )


def _why(error: aiohttp.ClientError | aiohttp.ConnectionTimeoutError) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "the engine's certificate is not of this policy"
    if isinstance(error, aiohttp.ClientSSLError):
        return "the TLS handshake with the engine failed"
    return "no connection to the engine"


async def _mark_reused(_session: aiohttp.ClientSession, context: SimpleNamespace, _: object) -> None:
    context.trace_request_ctx.reused = True
