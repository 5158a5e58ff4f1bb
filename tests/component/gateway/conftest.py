"""A gateway on real sockets, in front of a fake engine that speaks the engine's side of the protocol over real mutual TLS.

The fake keeps a prefix cache keyed by salt and verifies tokens with blockwarden-core, as an engine does; each entry of
`faults` breaks one thing that an attestation must notice.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import secrets
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography.x509.oid import ExtendedKeyUsageOID

from blockwarden_core import layout
from blockwarden_core.errors import RetiredToken, TokenError
from blockwarden_core.hooks import REQUIRED_HOOKS
from blockwarden_core.keys import api_key_digest
from blockwarden_core.report import Attestation
from blockwarden_core.salt import b64url, unb64url, verify_token
from blockwarden_gateway.logs import Log
from blockwarden_gateway.serve import Process
from blockwarden_gateway.settings import Settings

UID = "0b1c2d3e-policy"
ENGINE_NAME = "shared-llama-engine.inference.svc"
KEYS = {"acme": "bw-acme-0123456789abcdef", "acme-bob": "bw-bob-0123456789abcdef", "globex": "bw-globex-0123456789abcdef"}


def replace(path: Path, text: str) -> None:
    """Puts another file in a file's place, as a mounted volume does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    following = path.with_suffix(".next")
    following.write_text(text)
    os.replace(following, path)


@dataclass
class Root:
    """A gateway's mounted files; change an attribute and `write` them again."""

    path: Path
    policy: dict[str, Any]
    keyring: dict[str, Any]
    engine_keys: dict[str, Any]
    api_keys: dict[str, Any]

    def write(self) -> None:
        for path, document in (
            (layout.GATEWAY_POLICY, self.policy),
            (layout.SALT_KEYRING, self.keyring),
            (layout.ENGINE_KEYS, self.engine_keys),
            (layout.API_KEYS, self.api_keys),
        ):
            text = json.dumps(document)
            target = self.path / path
            if not target.exists() or target.read_text() != text:
                replace(target, text)

    @property
    def secrets(self) -> list[str]:
        """Every string that must never leave the gateway."""
        salts = [entry["secret"] for entry in self.keyring["secrets"]]
        return [*salts, *(entry["key"] for entry in self.engine_keys["keys"]), *KEYS.values()]


def new_root(path: Path, port: int) -> Root:
    tenants = [{"name": name, "scope": "Tenant"} for name in ("acme", "globex")]
    owners = [("acme", "acme", None), ("acme-bob", "acme", "bob"), ("globex", "globex", None)]
    keys = [
        {"digest": api_key_digest(KEYS[key]), "tenant": tenant} | ({"user": user} if user else {}) for key, tenant, user in owners
    ]
    return Root(
        path,
        policy={
            "policyUid": UID, "version": 1, "model": "tiny", "tenants": tenants, "exposeCachedTokens": True,
            "engine": {"host": "127.0.0.1", "port": port, "serverName": ENGINE_NAME},
        },
        keyring={
            "secrets": [{"id": "s1", "secret": b64url(secrets.token_bytes(32))}],
            "generations": {"acme": 1, "globex": 1, "canary": 2, "shared": 1},
        },
        engine_keys={"active": "k1", "keys": [{"id": "k1", "key": b64url(secrets.token_bytes(32))}]},
        api_keys={"keys": keys},
    )  # fmt: skip


@dataclass
class Record:
    """One request as an engine saw it."""

    path: str
    headers: list[tuple[str, str]]
    body: dict[str, Any]

    @property
    def is_canary(self) -> bool:
        """Whether attestation sent it."""
        salt = self.body.get("cache_salt")
        return not salt or str(salt).startswith("v1.canary.")


@dataclass
class FakeEngine:
    """An engine on a loopback address."""

    engine_keys: Callable[[], tuple[bytes, ...]]
    nonce: str = "boot-1"
    pod_uid: str = "engine-pod"
    faults: set[str] = field(default_factory=set)
    floors: dict[str, int] = field(default_factory=lambda: {"acme": 1, "globex": 1, "canary": 2, "shared": 1})
    records: list[Record] = field(default_factory=list)
    cache: set[tuple[str, str]] = field(default_factory=set)
    answers: list[Callable[[web.Request], Any]] = field(default_factory=list)
    """Each serves one tenant request in place of the usual answer."""
    hold: asyncio.Event | None = None
    """Streams wait for it after their first event."""
    closed_early: int = 0

    @property
    def tenant_records(self) -> list[Record]:
        return [record for record in self.records if not record.is_canary]

    def restart(self, nonce: str) -> None:
        self.nonce = nonce
        self.cache.clear()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if request.path == layout.ATTESTATION_PATH:
            return self._json(200, self._attestation())
        body = json.loads(await request.read())
        record = Record(request.path, [(name.lower(), value) for name, value in request.headers.items()], body)
        self.records.append(record)
        if request.headers.get(layout.BOOT_HEADER) != self.nonce and "no_boot_check" not in self.faults:
            return self._json(421, {"error": {"type": "isolation", "code": "boot_nonce", "message": "restarted"}})
        if self.answers and not record.is_canary:
            return await self.answers.pop(0)(request)
        try:
            self._admit(body.get("cache_salt"))
        except TokenError as error:
            message = f"refused {body.get('cache_salt')}"
            return self._json(403, {"error": {"type": "isolation", "code": error.code, "message": message}})
        return await self._generate(request, body)

    def _admit(self, salt: object) -> None:
        if "no_token_check" in self.faults:
            return
        token = verify_token(salt, engine_keys=self.engine_keys(), policy_uid=UID)
        if token.generation < self.floors[token.tenant] and "no_floor" not in self.faults:
            raise RetiredToken("retired")

    def _attestation(self) -> dict[str, Any]:
        hooks = {name: "sha256:0" for name in REQUIRED_HOOKS if not ("missing_hook" in self.faults and name == "worker")}
        return Attestation(
            pod_uid=self.pod_uid, boot_nonce=self.nonce, policy_version=1, plugin_version="0", engine_version="0",
            policy_uid="another" if "wrong_policy" in self.faults else UID, hooks=hooks,
        ).model_dump(by_alias=True)  # fmt: skip

    async def _generate(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        prompt = body.get("prompt") or body["messages"]
        salt = "" if "shares_cache" in self.faults else str(body.get("cache_salt"))
        length = len(prompt) if isinstance(prompt[0], int) else len(json.dumps(prompt).split())
        key = (salt.split(".")[3] if salt.count(".") == 4 else salt, json.dumps(prompt))
        cached = length // 16 * 16 if key in self.cache else 0
        if "no_cache" not in self.faults:
            self.cache.add(key)
        usage: dict[str, Any] = {"prompt_tokens": length, "completion_tokens": 3, "total_tokens": length + 3}
        if cached:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        chat = request.path.endswith("/chat/completions")
        if body.get("stream"):
            return await self._stream(request, body, chat, usage)
        said = {"message": {"role": "assistant", "content": "one two three"}} if chat else {"text": "one two three"}
        return self._json(200, self._envelope(chat, [{"index": 0, "finish_reason": "stop", **said}], usage))

    async def _stream(self, request: web.Request, body: dict[str, Any], chat: bool, usage: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **self._headers()})
        await response.prepare(request)
        try:
            for number, word in enumerate(("one ", "two ", "three")):
                said = {"delta": {"content": word}} if chat else {"text": word}
                finish = "stop" if number == 2 else None
                await self._event(response, self._envelope(chat, [{"index": 0, "finish_reason": finish, **said}], None))
                if self.hold is not None:
                    await self.hold.wait()
            if (body.get("stream_options") or {}).get("include_usage"):
                await self._event(response, self._envelope(chat, [], usage))
            await response.write(b"data: [DONE]\n\n")
        except (ConnectionResetError, asyncio.CancelledError):
            self.closed_early += 1
            raise
        return response

    async def _event(self, response: web.StreamResponse, data: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(data).encode() + b"\n\n")

    def _envelope(self, chat: bool, choices: list[Any], usage: dict[str, Any] | None) -> dict[str, Any]:
        kind = "chat.completion" if chat else "text_completion"
        return {
            "id": "engine-internal-id", "object": kind, "created": 1, "model": "tiny", "choices": choices, "usage": usage,
            "kv_transfer_params": {"remote_host": "10.0.0.9"}, "system_fingerprint": "vllm-fp", "metrics": {"load": 1},
        }  # fmt: skip

    def _json(self, status: int, document: dict[str, Any]) -> web.Response:
        return web.json_response(document, status=status, headers=self._headers())

    def _headers(self) -> dict[str, str]:
        return {layout.BOOT_HEADER: self.nonce, "x-engine-secret": "internal", "endpoint-load-metrics": "kv=0.9"}


@dataclass
class Running:
    """A gateway that serves."""

    process: Process
    root: Root
    public: str
    internal: str
    log: io.StringIO
    session: aiohttp.ClientSession

    async def post(self, path: str, body: Any, *, key: str | None = "acme", **headers: str) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        bearer = {"authorization": f"Bearer {KEYS.get(key, key)}"} if key is not None else {}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.public + path, data=data, headers=bearer | named) as response:
            return response.status, json.loads(await response.read())

    async def inside(self, path: str) -> tuple[int, str]:
        """Status and text from the internal port."""
        async with self.session.get(self.internal + path, ssl=False) as response:
            return response.status, await response.text()

    async def status(self) -> dict[str, Any]:
        return dict(json.loads((await self.inside(layout.STATUS_PATH))[1]))

    async def until(self, true: Callable[[], Any], seconds: float = 8.0) -> None:
        """Waits for a condition; `true` may be a coroutine function."""
        async with asyncio.timeout(seconds):
            while True:
                answer = true()
                if await answer if asyncio.iscoroutine(answer) else answer:
                    return
                await asyncio.sleep(0.02)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def root(tmp_path: Path, authority: Any) -> Root:
    root = new_root(tmp_path / "root", free_port())
    root.write()
    authority.write(root.path / layout.CLIENT_TLS, "gateway", ExtendedKeyUsageOID.CLIENT_AUTH)
    authority.write(root.path / layout.INTERNAL_TLS, "gateway.internal", ExtendedKeyUsageOID.SERVER_AUTH)
    return root


@asynccontextmanager
async def serving(engine: FakeEngine, directory: Path, host: str, port: int) -> AsyncIterator[None]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=directory / layout.TLS_CA)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(directory / layout.TLS_CERT, directory / layout.TLS_KEY)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", engine.serve)
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=5, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, port, ssl_context=context).start()
    try:
        yield
    finally:
        await runner.cleanup()


MakeEngine = Callable[[AsyncExitStack, str, Path], Awaitable[FakeEngine]]


@pytest.fixture
def make_engine(root: Root) -> MakeEngine:
    """Starts an engine at a loopback address with the certificate in a directory."""

    async def make(stack: AsyncExitStack, host: str, directory: Path) -> FakeEngine:
        fake = FakeEngine(lambda: tuple(unb64url(entry["key"]) for entry in root.engine_keys["keys"]))
        await stack.enter_async_context(serving(fake, directory, host, root.policy["engine"]["port"]))
        return fake

    return make


@pytest.fixture
def engine_tls(authority: Any, tmp_path: Path) -> Path:
    return authority.write(tmp_path / "engine-tls", ENGINE_NAME, ExtendedKeyUsageOID.SERVER_AUTH)


@pytest.fixture
async def engine(make_engine: MakeEngine, engine_tls: Path) -> AsyncIterator[FakeEngine]:
    async with AsyncExitStack() as stack:
        yield await make_engine(stack, "127.0.0.1", engine_tls)


@pytest.fixture
def free_ports() -> Callable[[int], list[int]]:
    return lambda count: [free_port() for _ in range(count)]


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start(root: Root, authority: Any) -> AsyncIterator[Start]:
    """Starts a gateway on the root's files; the test says when, and it ends with the test."""
    async with aiohttp.ClientSession() as session:
        running: list[tuple[Process, asyncio.Task[None]]] = []

        async def begin(**injected: Any) -> Running:
            settings = Settings(
                root.path, "gateway-pod", UID, host="127.0.0.1", public_port=free_port(), internal_port=free_port(),
                public_tls=(root.path / layout.PUBLIC_TLS).exists(), reload_seconds=0.05, resolve_seconds=0.1,
                linger_seconds=0, drain_seconds=5, body_seconds=1,
            )  # fmt: skip
            log = io.StringIO()
            process = Process(settings, Log(log), **injected)
            running.append((process, asyncio.create_task(process.run())))
            public, internal = (f"http://127.0.0.1:{settings.public_port}", f"https://127.0.0.1:{settings.internal_port}")
            gateway = Running(process, root, public, internal, log, session)
            await gateway.until(lambda: _answers(gateway))
            return gateway

        yield begin
        for process, _ in running:
            process.stopping.set()
        await asyncio.gather(*(task for _, task in running))


async def _answers(gateway: Running) -> bool:
    try:
        return (await gateway.inside(layout.LIVEZ_PATH))[0] == 200
    except aiohttp.ClientError:
        return False


@pytest.fixture
async def gateway(engine: FakeEngine, start: Start) -> Running:
    """A gateway whose engine is attested."""
    running = await start()

    async def ready() -> bool:
        return (await running.inside(layout.READYZ_PATH))[0] == 200

    await running.until(ready)
    return running
