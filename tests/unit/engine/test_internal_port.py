"""The internal port against clients that nobody knows: what one request may send and how long it may take is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from blockwarden_core import layout
from blockwarden_engine import internal
from blockwarden_engine.bounded import BoundedProtocol

GET = f"GET {layout.LIVEZ_PATH} HTTP/1.1\r\nHost: e\r\n"


class Alive:
    """Stands for the attester."""

    def alive(self) -> bool:
        return True


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """The internal port of an engine that answers, without TLS."""
    attester: Any = Alive()
    plain: Any = None
    server = internal.make_server(attester, plain, host="127.0.0.1", port=0)
    server.config.ssl_context_factory = None
    serving = asyncio.create_task(internal.serve(server))
    while not server.started:
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    with contextlib.suppress(asyncio.CancelledError):
        await serving


async def exchange(port: int, *sent: bytes) -> bytes:
    """Everything that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        for part in sent:
            writer.write(part)
            await writer.drain()
    try:
        async with asyncio.timeout(5):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_a_probe_is_answered(port: int) -> None:
    answer = await exchange(port, f"{GET}Connection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_each_request_of_a_connection_is_counted_by_itself(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(4):
        writer.write(f"{GET}x-pad: {'y' * 9000}\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200 ")
    writer.close()


@pytest.mark.parametrize(
    "endless",
    [f"{GET}x: {'y' * 300_000}", GET + "x: y\r\n" * 60_000, f"{GET}Content-Length: 300000\r\n\r\n{'y' * 300_000}"],
    ids=["one header", "many headers", "a body"],
)
async def test_a_request_that_is_too_large_is_ended(port: int, endless: str) -> None:
    raw = endless.encode()
    answer = await exchange(port, *[raw[at : at + 4096] for at in range(0, len(raw), 4096)])
    assert not answer or b"HTTP/1.1 400 " in answer


@pytest.mark.parametrize("begun", [b"", b"GET /livez HT", GET.encode()])
async def test_a_request_that_does_not_end_is_not_waited_for(port: int, monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    monkeypatch.setattr(BoundedProtocol, "request_seconds", 0.2)
    async with asyncio.timeout(3):
        assert await exchange(port, begun) == b""


def test_signals_are_left_to_the_api_server() -> None:
    before = signal.getsignal(signal.SIGTERM)
    attester: Any = Alive()
    tls: Any = None
    with internal.make_server(attester, tls, host="127.0.0.1", port=0).capture_signals():
        assert signal.getsignal(signal.SIGTERM) is before
