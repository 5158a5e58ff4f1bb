"""A gateway without sockets: the ASGI application in front of an upstream that records what an engine would get."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from blockwarden_core import layout
from blockwarden_core.keys import api_key_digest
from blockwarden_core.report import Attestation
from blockwarden_core.salt import b64url
from blockwarden_gateway.app import Gateway
from blockwarden_gateway.dispatch import Dispatcher
from blockwarden_gateway.engines.client import Request, Target
from blockwarden_gateway.engines.fleet import Fleet
from blockwarden_gateway.logs import Log
from blockwarden_gateway.metrics import Metrics
from blockwarden_gateway.mounts import Mounts
from blockwarden_gateway.settings import Settings

SCOPES = {"acme": "Tenant", "globex": "User", "initech": "None", "umbrella": "Session", "hooli": "Request"}
GENERATIONS = {"acme": 3, "globex": 1, "umbrella": 9, "hooli": 2, "initech": 7, "shared": 2, "canary": 2}
SECRET = b"n" * 32
ENGINE_KEY = b"e" * 32
ANSWERS = {
    "/v1/chat/completions": {"message": {"role": "assistant", "content": "hi"}},
    "/v1/completions": {"text": "hi"},
}


class Answer:
    """An engine's whole answer."""

    def __init__(self, body: bytes) -> None:
        self.status, self.boot, self._body = 200, "boot", body

    async def read(self) -> bytes:
        return self._body

    async def chunks(self) -> AsyncIterator[bytes]:
        yield b"data: " + self._body + b"\n\ndata: [DONE]\n\n"

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class Recorder:
    """An upstream that keeps every request."""

    requests: list[Request] = field(default_factory=list)

    async def send(self, target: Target, request: Request, *, seconds: float | None = None, fresh: bool = False) -> Answer:
        self.requests.append(request)
        choice = {"index": 0, "finish_reason": "stop", **ANSWERS[request.path]}
        choice |= {"delta": choice["message"]} if "message" in choice else {}
        return Answer(json.dumps({"object": "x", "created": 1, "choices": [choice]}).encode())


@dataclass
class Harness:
    """Sends one request through the application."""

    app: Gateway
    recorder: Recorder
    runner: asyncio.Runner

    def post(self, path: str, body: bytes, headers: list[tuple[bytes, bytes]]) -> tuple[int, bytes, list[Request]]:
        """The status and body that the client gets, and what the engine got."""
        self.recorder.requests.clear()
        sent: list[dict[str, Any]] = []
        pending = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if pending:
                return pending.pop()
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Any) -> None:
            sent.append(dict(message))

        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        self.runner.run(self.app(scope, receive, send))
        answer = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], answer, list(self.recorder.requests)


def write_root(root: Path) -> None:
    tenants = [{"name": name, "scope": scope} for name, scope in SCOPES.items()]
    keys = [{"digest": api_key_digest(f"key-{name}"), "tenant": name, "user": f"{name}-bob"} for name in SCOPES]
    documents: dict[str, Any] = {
        layout.GATEWAY_POLICY: {
            "policyUid": "uid-1", "version": 1, "model": "tiny", "tenants": tenants,
            "engine": {"host": "engine", "port": 8000, "serverName": "engine"},
        },
        layout.SALT_KEYRING: {"secrets": [{"id": "s", "secret": b64url(SECRET)}], "generations": GENERATIONS},
        layout.ENGINE_KEYS: {"active": "k", "keys": [{"id": "k", "key": b64url(ENGINE_KEY)}]},
        layout.API_KEYS: {"keys": keys},
    }  # fmt: skip
    for path, document in documents.items():
        (root / path).parent.mkdir(parents=True)
        (root / path).write_text(json.dumps(document))


async def attest(target: Target, material: Any) -> Attestation:
    return Attestation(
        pod_uid="pod", boot_nonce="boot", policy_uid="uid-1", policy_version=1, plugin_version="1", engine_version="1",
        hooks={},
    )  # fmt: skip


async def found(engine: Any) -> frozenset[str]:
    return frozenset({"10.0.0.1:8000"})


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    root = tmp_path_factory.mktemp("root")
    write_root(root)
    log, metrics, recorder = Log(io.StringIO()), Metrics(), Recorder()
    mounts = Mounts(root, policy_uid="uid-1", log=log, metrics=metrics)
    with asyncio.Runner() as runner:
        fleet = runner.run(_fleet(mounts, log, metrics))
        dispatcher = Dispatcher(mounts=mounts, fleet=fleet, upstream=recorder, metrics=metrics)
        app = Gateway(Settings(root, "pod", "uid-1"), mounts=mounts, dispatcher=dispatcher, log=log, metrics=metrics)
        yield Harness(app, recorder, runner)


async def _fleet(mounts: Mounts, log: Log, metrics: Metrics) -> Fleet:
    fleet = Fleet(material=lambda: mounts.material, attest=attest, resolve=found, log=log, metrics=metrics)
    fleet._follow(await found(None))
    fleet._start_due()
    async with asyncio.timeout(3):
        while not fleet.ever_attested:
            await asyncio.sleep(0)
    return fleet
