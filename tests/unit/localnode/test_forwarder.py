"""The forwarder carries bytes both ways, keeps half-closed streams half-closed, and ends with what it serves."""

import asyncio
import contextlib
import os
import socket

import pytest

from localnode import forwarder


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A peer that answers only after it has seen the end of what was sent: it needs a half-closed connection."""
    writer.write((await reader.read()).upper())
    await writer.drain()
    writer.close()


async def through(target: int, content: bytes) -> bytes:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    serving = asyncio.create_task(forwarder.serve(listener, "127.0.0.1", target, None))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(content)
    writer.write_eof()
    try:
        return await reader.read()
    finally:
        writer.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.parametrize("content", [b"", b"hello", b"x" * 3_000_000])
async def test_bytes_go_there_and_back_after_the_end_was_passed_on(content: bytes) -> None:
    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    async with server:
        assert await through(server.sockets[0].getsockname()[1], content) == content.upper()


async def test_a_refused_target_closes_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with contextlib.suppress(ConnectionResetError):
        assert await through(port, b"hello") == b""


async def test_the_end_of_the_anchor_ends_the_forwarder() -> None:
    child = await asyncio.create_subprocess_exec("sleep", "60")
    listener = socket.create_server(("127.0.0.1", 0))
    descriptor = os.pidfd_open(child.pid)
    serving = asyncio.create_task(forwarder.serve(listener, "127.0.0.1", 1, descriptor))
    await asyncio.sleep(0.05)
    assert not serving.done()
    child.kill()
    await asyncio.wait_for(serving, 5)
    await child.wait()
    os.close(descriptor)
