"""What the gateway adds: the same requests sent to a recording upstream directly and through a gateway, interleaved in one run.

    uv run python tests/bench/gateway/overhead.py [seconds per round] [rounds]

Three processes: an upstream that answers at once over mutual TLS, a gateway, and this one, which sends. Numbers are medians of
rounds; only their ratios within one run mean anything, since the three share the machine's cores.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import multiprocessing
import os
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import uvicorn
import uvloop
from cryptography.x509.oid import ExtendedKeyUsageOID

from blockwarden_core import layout
from blockwarden_core.errors import TokenError
from blockwarden_core.hooks import REQUIRED_HOOKS
from blockwarden_core.report import Attestation
from blockwarden_core.salt import unb64url, verify_token
from blockwarden_gateway.logs import Log
from blockwarden_gateway.serve import serve
from blockwarden_gateway.settings import Settings

COMPLETIONS = "/v1/completions"
CHUNKS = 200


def kit(directory: str) -> ModuleType:
    """What the component tests keep in the conftest.py of a directory."""
    path = Path(__file__).parents[2] / directory / "conftest.py"
    spec = importlib.util.spec_from_file_location(directory.replace("/", "_"), path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Upstream:
    """An engine that passes attestation and answers tenants with canned bytes."""

    def __init__(self, engine_keys: list[bytes], policy_uid: str) -> None:
        self._keys, self._uid = engine_keys, policy_uid
        self._canaries: set[bytes] = set()
        text = "word " * 100
        choice = {"index": 0, "text": text, "finish_reason": "stop"}
        usage = {"prompt_tokens": 400, "completion_tokens": 100, "total_tokens": 500}
        document = {"id": "x", "object": "text_completion", "created": 1, "model": "tiny", "choices": [choice], "usage": usage}
        self._whole = json.dumps(document).encode()
        piece = document | {"choices": [choice | {"text": "word", "finish_reason": None}], "usage": None}
        self._chunk = b"data: " + json.dumps(piece).encode() + b"\n\n"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while scope["method"] == "POST":
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if b'"stream":true' in body and b"v1.canary" not in body and b"cache_salt" in body:
            await self._stream(send)
            return
        status, answer = self._answer(scope["path"], body)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"x-blockwarden-boot", b"b")]})
        await send({"type": "http.response.body", "body": answer})

    async def _stream(self, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"x-blockwarden-boot", b"b")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(CHUNKS):
            await send({"type": "http.response.body", "body": self._chunk, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})

    def _answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        if path == layout.ATTESTATION_PATH:
            statement = Attestation(
                pod_uid="p", boot_nonce="b", policy_uid=self._uid, policy_version=1, plugin_version="0", engine_version="0",
                hooks=dict.fromkeys(REQUIRED_HOOKS, "0"),
            )  # fmt: skip
            return 200, statement.text().encode()
        if b'"v1.acme.' in body or b'"direct"' in body:
            return 200, self._whole
        return self._canary(json.loads(body), body)

    def _canary(self, request: Any, body: bytes) -> tuple[int, bytes]:
        try:
            token = verify_token(request.get("cache_salt"), engine_keys=self._keys, policy_uid=self._uid)
        except TokenError as error:
            return 403, json.dumps({"error": {"code": error.code}}).encode()
        if token.generation < 2:
            return 403, b'{"error":{"code":"salt_retired"}}'
        cached = 256 if body in self._canaries else 0
        self._canaries.add(body)
        return 200, json.dumps({"usage": {"prompt_tokens_details": {"cached_tokens": cached}}}).encode()


def run_upstream(port: int, directory: str, engine_keys: list[bytes], policy_uid: str) -> None:
    tls, files = Path(directory), (layout.TLS_CERT, layout.TLS_KEY, layout.TLS_CA)
    certificate, key, ca = (str(tls / name) for name in files)
    uvicorn.run(
        Upstream(engine_keys, policy_uid), host="127.0.0.1", port=port, log_level="warning", access_log=False, lifespan="off",
        ssl_certfile=certificate, ssl_keyfile=key, ssl_ca_certs=ca, ssl_cert_reqs=ssl.CERT_REQUIRED,
    )  # fmt: skip


def run_gateway(root: str, public: int, internal: int, policy_uid: str) -> None:
    settings = Settings(
        Path(root), "pod", policy_uid, host="127.0.0.1", public_port=public, internal_port=internal, linger_seconds=0
    )
    with open("/dev/null", "w") as sink:
        uvloop.run(serve(settings, Log(sink)))


class Connection:
    """A keep-alive connection that sends the same bytes again and again."""

    def __init__(self, port: int, context: ssl.SSLContext | None, name: str, key: str) -> None:
        self._port, self._context, self._name, self._key = port, context, name, key

    async def open(self) -> Connection:
        name = self._name if self._context else None
        opening = asyncio.open_connection("127.0.0.1", self._port, ssl=self._context, server_hostname=name)
        self._reader, self._writer = await opening
        return self

    def request(self, **fields: Any) -> bytes:
        document = {"model": "tiny", "prompt": "word " * 400, "cache_salt": "direct", **fields}
        body = json.dumps(document, separators=(",", ":")).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: {self._name}\r\nauthorization: Bearer {self._key}\r\n"
        head += f"x-blockwarden-boot: b\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        return head.encode() + body

    async def whole(self, request: bytes) -> None:
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(head.decode())
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await self._reader.readexactly(length)

    async def stream(self, request: bytes) -> None:
        self._writer.write(request)
        await self._reader.readuntil(b"0\r\n\r\n")

    def close(self) -> None:
        self._writer.close()


Make = Callable[[], Connection]


async def latency(make: Make, seconds: float) -> float:
    """Median seconds of one request after the other."""
    connection = await make().open()
    request, took = connection.request(), []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        await connection.whole(request)
        took.append(time.perf_counter() - start)
    connection.close()
    return statistics.median(took)


async def rate(make: Make, seconds: float) -> float:
    """Requests per second over 32 connections."""
    connections = [await make().open() for _ in range(32)]
    end, done = time.perf_counter() + seconds, [0]

    async def work(connection: Connection) -> None:
        request = connection.request()
        while time.perf_counter() < end:
            await connection.whole(request)
            done[0] += 1

    await asyncio.gather(*map(work, connections))
    for connection in connections:
        connection.close()
    return done[0] / seconds


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far: unlike wall time it hardly depends on what else the machine does."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def per_chunk(make: Make, seconds: float) -> float:
    """Seconds per streamed chunk over 8 streams at a time."""
    connections = [await make().open() for _ in range(8)]
    start, end, done = time.perf_counter(), time.perf_counter() + seconds, [0]

    async def work(connection: Connection) -> None:
        request = connection.request(stream=True)
        while time.perf_counter() < end:
            await connection.stream(request)
            done[0] += CHUNKS

    await asyncio.gather(*map(work, connections))
    for connection in connections:
        connection.close()
    return (time.perf_counter() - start) / done[0]


Measure = Callable[[Make, float], Awaitable[float]]


@dataclass(frozen=True)
class Setup:
    """What is compared; `gateway` is a process id, `seconds` the length of one round."""

    direct: Make
    through: Make
    gateway: int
    internal: int
    seconds: float
    rounds: int


async def compare(setup: Setup) -> None:
    """Prints medians of interleaved rounds and the median of their ratios."""
    measures: list[tuple[str, Measure, float, str]] = [
        ("latency, 1 connection", latency, 1e6, "µs"),
        ("requests/s, 32 connections", rate, 1, "/s"),
        ("per streamed chunk, 8 streams", per_chunk, 1e6, "µs"),
    ]
    for name, measure, factor, unit in measures:
        pairs = [
            (await measure(setup.direct, setup.seconds), await measure(setup.through, setup.seconds)) for _ in range(setup.rounds)
        ]
        plain, added = (statistics.median(values) * factor for values in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        print(f"{name:32} direct {plain:9.1f} {unit:3} gateway {added:9.1f} {unit:3} ratio {ratio:6.2f}")
    before = cpu_seconds(setup.gateway)
    done = await rate(setup.through, setup.seconds) * setup.seconds
    print(f"{'CPU of the gateway, per request':32} {(cpu_seconds(setup.gateway) - before) / done * 1e6:9.1f} µs")


async def measure_all(setup: Setup) -> None:
    """Waits until the gateway has attested the upstream, then compares."""
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    for _ in range(100):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", setup.internal, ssl=trust)
            writer.write(b"GET /readyz HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n")
            if (await reader.read()).startswith(b"HTTP/1.1 200"):
                break
        except OSError:
            pass
        await asyncio.sleep(0.2)
    await compare(setup)


def main() -> None:
    seconds, rounds = (float(sys.argv[1]) if len(sys.argv) > 1 else 2.0), (int(sys.argv[2]) if len(sys.argv) > 2 else 3)
    test = kit("component/gateway")
    upstream, public, internal = (test.free_port() for _ in range(3))
    with tempfile.TemporaryDirectory() as directory:
        root, authority = test.new_root(Path(directory) / "root", upstream), kit("component").Authority()
        root.write()
        client = authority.write(root.path / layout.CLIENT_TLS, "gateway", ExtendedKeyUsageOID.CLIENT_AUTH)
        authority.write(root.path / layout.INTERNAL_TLS, "internal", ExtendedKeyUsageOID.SERVER_AUTH)
        server = authority.write(Path(directory) / "engine", test.ENGINE_NAME, ExtendedKeyUsageOID.SERVER_AUTH)
        context = ssl.create_default_context(cafile=str(client / layout.TLS_CA))
        context.load_cert_chain(client / layout.TLS_CERT, client / layout.TLS_KEY)
        keys = [unb64url(entry["key"]) for entry in root.engine_keys["keys"]]
        processes = [
            multiprocessing.Process(target=run_upstream, args=(upstream, str(server), keys, test.UID)),
            multiprocessing.Process(target=run_gateway, args=(str(root.path), public, internal, test.UID)),
        ]
        for process in processes:
            process.start()
        setup = Setup(
            direct=lambda: Connection(upstream, context, test.ENGINE_NAME, test.KEYS["acme"]),
            through=lambda: Connection(public, None, test.ENGINE_NAME, test.KEYS["acme"]),
            gateway=processes[1].pid or 0,
            internal=internal,
            seconds=seconds,
            rounds=rounds,
        )
        try:
            uvloop.run(measure_all(setup))
        finally:
            for process in processes:
                process.terminate()
                process.join()


if __name__ == "__main__":
    main()
