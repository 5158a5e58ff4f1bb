"""The middleware around an application that records what reaches it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwarden_core import layout
from blockwarden_core.keys import EngineKey, EngineKeys
from blockwarden_core.policy import EnginePolicy, TenantShare, seal_policy
from blockwarden_core.salt import sign_token
from blockwarden_engine import frontend
from blockwarden_engine.admission import Admission, length_is_free
from blockwarden_engine.errors import PluginMissing
from blockwarden_engine.settings import Identity

KEYS = EngineKeys(active="k", keys=(EngineKey.model_validate({"id": "k", "key": b"k" * 32}),))
FIELDS = {"/v1/completions": frozenset({"prompt", "cache_salt", "stream", "max_tokens", "priority"})}
TOKEN = sign_token(b"k" * 32, policy_uid="uid", tenant="acme", generation=1, salt="s" * 43)
GOOD = {"prompt": "x", "cache_salt": TOKEN}


class Application:
    """What stands for vLLM."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, bytes, bool]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"] if scope["method"] == "POST" else b""
        self.seen.append((scope, body, length_is_free.get()))
        headers = [(b"content-type", b"text/plain"), (b"endpoint-load-metrics", b"kv=0.7"), (b"server", b"vllm")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"served"})


Client = Callable[..., Any]


@pytest.fixture
def application() -> Application:
    return Application()


@pytest.fixture
def client(application: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    policy = EnginePolicy(
        policy_uid="uid", version=1, tenants=(TenantShare(name="acme", guaranteed=1, limit=1, generation=1, floor=1),)
    )
    for relative, text in ((layout.ENGINE_KEYS, KEYS.text()), (layout.ENGINE_POLICY, seal_policy(policy, KEYS))):
        (tmp_path / relative).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / relative).write_text(text)
    monkeypatch.setattr(frontend, "require_plugin", lambda who: None)
    monkeypatch.setattr(frontend, "observe_identity", lambda: Identity(tmp_path, "uid", "pod", "b007"))
    monkeypatch.setattr(frontend, "process_admission", lambda: Admission(tmp_path, "uid"))
    monkeypatch.setattr(frontend, "process_attester", lambda: None)
    monkeypatch.setattr(frontend, "request_fields", lambda: FIELDS)
    middleware = frontend.IsolationMiddleware(application)

    async def call(
        method: str, path: str, body: Any = None, headers: Any = (), **scope: Any
    ) -> tuple[int, dict[bytes, bytes], Any]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        chunks = [
            {"type": "http.request", "body": raw[:7], "more_body": True},
            {"type": "http.request", "body": raw[7:], "more_body": False},
        ]
        sent: list[Any] = []

        async def receive() -> Any:
            return chunks.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        described = {"type": "http", "method": method, "path": path, "headers": list(headers), "query_string": b"x=1"} | scope
        await middleware(described, receive, send)
        answer = sent[1]["body"]
        return sent[0]["status"], dict(sent[0]["headers"]), json.loads(answer) if answer[:1] == b"{" else answer

    return call


async def test_a_good_request_reaches_vllm_as_our_own_serialisation(client: Client, application: Application) -> None:
    headers = [
        (b"content-length", b"999"), (b"content-type", b"text/x"), (b"x-data-parallel-rank", b"1"), (b"X-Vllm-Priority", b"9"),
        (b"x-session-id", b"s"), (b"traceparent", b"t"), (b"x-request-id", b"id"), (b"endpoint-load-metrics-format", b"TEXT"),
    ]  # fmt: skip
    status, sent, answer = await client("POST", "/v1/completions", GOOD, headers)
    scope, body, free = application.seen[0]
    assert (status, answer, free) == (200, b"served", True)
    assert json.loads(body) == GOOD
    assert dict(scope["headers"]) == {
        b"x-request-id": b"id", b"content-type": b"application/json", b"content-length": str(len(body)).encode()
    }  # fmt: skip
    assert scope["query_string"] == b""
    assert sent == {b"content-type": b"text/plain", layout.BOOT_HEADER.encode(): b"b007"}


async def test_a_length_that_the_client_names_is_not_free(client: Client, application: Application) -> None:
    await client("POST", "/v1/completions", GOOD | {"max_tokens": 5})
    assert application.seen[0][2] is False


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/metrics"), ("GET", "/health"), ("GET", "/load"), ("GET", "/version"), ("POST", "/invocations"),
        ("GET", "/docs"), ("POST", "/v1/responses"), ("POST", "/v1/embeddings"), ("POST", "/tokenize"),
        ("POST", "/scale_elastic_ep"),
        ("GET", "/v1/completions"), ("POST", "/v1/completions/"), ("POST", "//v1/completions"), ("POST", "/v1/models"),
        ("OPTIONS", "/v1/completions"), ("POST", layout.ATTESTATION_PATH),
    ],
)  # fmt: skip
async def test_every_other_route_is_closed_with_the_same_answer(
    client: Client, application: Application, method: str, path: str
) -> None:
    status, sent, answer = await client(method, path, GOOD)
    assert (status, answer["error"]["code"]) == (404, "not_found")
    assert sent[layout.BOOT_HEADER.encode()] == b"b007"
    assert application.seen == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("salt", "code"),
    [
        (None, "salt_missing"), ("", "salt_missing"), ("acme", "salt_malformed"), (7, "salt_malformed"),
        (TOKEN[:-2] + "xx", "salt_forged"), (TOKEN.replace("acme", "beta"), "salt_forged"),
    ],
)  # fmt: skip
async def test_bad_tokens_get_403_before_vllm_sees_a_byte(
    client: Client, application: Application, salt: Any, code: str, stream: bool
) -> None:
    status, _, answer = await client("POST", "/v1/completions", {"prompt": "x", "stream": stream, "cache_salt": salt})
    assert (status, answer["error"]["type"], answer["error"]["code"]) == (403, "isolation", code)
    assert application.seen == []


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "body_malformed"), (GOOD | {"priority": 1}, 400, "field_refused"), (GOOD | {"new": 1}, 400, "field_refused"),
        (b'{"cache_salt":"' + TOKEN.encode() + b'","prompt":"' + b"x" * frontend.MAX_BODY_BYTES + b'"}', 413, "body_too_large"),
    ],
    ids=["malformed", "refused field", "undeclared field", "too large"],
)  # fmt: skip
async def test_bad_bodies_are_refused(client: Client, application: Application, body: Any, status: int, code: str) -> None:
    answered, _, answer = await client("POST", "/v1/completions", body)
    assert (answered, answer["error"]["code"]) == (status, code)
    assert application.seen == []


async def test_a_request_meant_for_the_process_before_is_turned_away(client: Client, application: Application) -> None:
    status, _, answer = await client("POST", "/v1/completions", GOOD, [(layout.BOOT_HEADER.encode(), b"old")])
    assert (status, answer["error"]["code"]) == (421, "boot_mismatch")
    assert application.seen == []
    status, _, _ = await client("POST", "/v1/completions", GOOD, [(layout.BOOT_HEADER.encode(), b"b007")])
    assert status == 200


async def test_a_twin_that_hands_on_the_clients_bytes_would_be_seen(
    client: Client, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frontend, "_rebuilt", lambda scope, content: scope)
    await client("POST", "/v1/completions", GOOD, [(b"x-data-parallel-rank", b"1")])
    assert (b"x-data-parallel-rank", b"1") in application.seen[0][0]["headers"]


def test_without_the_plugin_there_is_no_middleware(application: Application) -> None:
    with pytest.raises(PluginMissing):
        frontend.IsolationMiddleware(application)
