"""A port of the host's loopback that ends inside a node's network namespace.

A socket stays in the namespace it was made in. So this process listens first, in the host's namespace, and only then
moves itself into the node's: what it accepts came from the host, what it connects to lies in the node. It ends by
itself when the node's anchor does. Runs as a script by its path and imports the standard library only.
"""

import argparse
import asyncio
import contextlib
import ctypes
import os
import socket
import sys

CLONE_NEWNET = 0x40000000
CHUNK = 1 << 16


def enter_network(pid: int) -> None:
    """setns(2) into the network namespace of `pid`; sockets made before stay where they were."""
    descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")
    os.close(descriptor)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction to its end, then pass the end on: half-closed streams (kubectl exec) stay half-closed."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    """Join one accepted connection with a new one to the target."""
    try:
        far_reader, far_writer = await asyncio.open_connection(host, port)
    except OSError:
        writer.transport.abort()
        return
    await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
    for end in (writer, far_writer):
        end.close()


async def serve(listener: socket.socket, host: str, port: int, anchor: int | None) -> None:
    """Forward until the anchor's descriptor says that it has ended."""
    ended = asyncio.Event()
    if anchor is not None:
        asyncio.get_running_loop().add_reader(anchor, ended.set)
    server = await asyncio.start_server(lambda r, w: carry(r, w, host, port), sock=listener)
    async with server:
        await ended.wait()


def main(arguments: list[str]) -> None:
    """Listen on loopback, report the port on standard output, move, serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--anchor", type=int, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--host", required=True)
    parser.add_argument("--target", type=int, required=True)
    options = parser.parse_args(arguments)
    listener = socket.create_server(("127.0.0.1", options.port), backlog=128)
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    anchor = os.pidfd_open(options.anchor)
    enter_network(options.anchor)
    asyncio.run(serve(listener, options.host, options.target, anchor))


if __name__ == "__main__":
    main(sys.argv[1:])
