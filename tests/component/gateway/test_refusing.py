"""What a gateway does not serve: keys, routes, bodies and limits."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from blockwarden_core import layout
from blockwarden_gateway.protocol import GuardedProtocol
from blockwarden_gateway.routes import GENERATION

CHAT = "/v1/chat/completions"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
SERVED = [("POST", path) for path in sorted(GENERATION)] + [("GET", "/v1/models"), ("GET", "/v1/models/tiny")]
CLOSED = [
    "/", "/metrics", "/load", "/health", "/ping", "/invocations", "/version", "/docs", "/openapi.json", "/v1", "/v1/",
    "/v1/responses", "/v1/responses/r1", "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings", "/v2/embed", "/pooling",
    "/classify", "/score", "/rerank", "/v1/rerank", "/tokenize", "/detokenize", "/tokenizer_info", "/kv_event_sources",
    "/v1/chat/completions/batch", "/v1/chat/completions/render", "/v1/chat/completions/", "/v1/completions/render",
    "/inference/v1/generate", "/abort_requests", "/reset_prefix_cache", "/collective_rpc", "/sleep", "/scale_elastic_ep",
    "/v1/load_lora_adapter", "/v1/audio/transcriptions", "/cohere/v2/chat", "/generative_scoring", "/v1/systemone",
    "/blockwarden/v1/attestation", "/status", "/livez", "/nothing", "/v1/chat%2Fcompletions/x", "/%2e%2e/metrics",
]  # fmt: skip


async def raw(gateway, head: str, body: bytes = b"", *, wait: float = 2.0) -> bytes:
    """What comes back for these very bytes."""
    host, port = gateway.public.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body)
    try:
        async with asyncio.timeout(wait):
            return await reader.read()
    except ConnectionError:  # closed while we were still sending: the answer is lost on the way
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(("method", "path"), SERVED)
@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Basic YTpi", "Bearer"])
async def test_without_a_valid_key_a_route_answers_before_the_body(gateway, engine, method, path, authorization):
    line = f"\nAuthorization: {authorization}" if authorization else ""
    length = "\nContent-Length: 1000" if method == "POST" else ""
    answer = await raw(gateway, f"{method} {path} HTTP/1.1\nHost: g\nConnection: close{line}{length}")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 401 ")
    assert b"www-authenticate: Bearer" in head
    assert json.loads(body)["error"]["code"] == "invalid_api_key"
    assert not engine.tenant_records
    assert '"event":"request"' not in gateway.log.getvalue()


async def test_closed_routes_answer_alike_with_and_without_a_key(gateway, engine):
    answers = set()
    for path in CLOSED:
        for method in ("GET", "POST", "DELETE", "OPTIONS"):
            for headers in ({}, {"authorization": "Bearer bw-acme-0123456789abcdef"}, {"authorization": "Bearer no"}):
                async with gateway.session.request(method, gateway.public + path, headers=headers) as response:
                    shown = {name.lower(): value for name, value in response.headers.items()}
                    shown.pop("date")
                    answers.add((response.status, tuple(sorted(shown.items())), await response.read()))
    assert len(answers) == 1
    [(status, shown, body)] = answers
    assert status == 404
    assert dict(shown).keys() == {"content-type", "content-length"}
    assert json.loads(body)["error"]["code"] == "not_found"
    assert not engine.tenant_records


@pytest.mark.parametrize("path", sorted(GENERATION))
@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_another_method_is_no_route(gateway, path, method):
    async with gateway.session.request(method, gateway.public + path) as response:
        assert response.status == 404


@pytest.mark.parametrize(
    "head",
    [
        f"POST {CHAT} HTTP/1.1\nHost: g\nAuthorization: Bearer KEY\nContent-Length: 5\nTransfer-Encoding: chunked",
        f"POST {CHAT} HTTP/1.1\nHost: g\nAuthorization: Bearer KEY\nContent-Length: 5\nContent-Length: 90",
        f"POST {CHAT} HTTP/1.1\nHost: g\nAuthorization: Bearer KEY\nTransfer-Encoding: chunked, identity",
        f"POST {CHAT} HTTP/1.1\nHost: g\nAuthorization : Bearer KEY\nContent-Length: 0",
        f"POST {CHAT} HTTP/1.1\nHost: g\nX: a\n folded: b\nAuthorization: Bearer KEY\nContent-Length: 0",
        f"POST {CHAT} HTTP/1.1\nHost: g\nX-A: a\0b\nAuthorization: Bearer KEY\nContent-Length: 0",
        f"POST {CHAT} HTTP/9.9\nHost: g\nAuthorization: Bearer KEY\nContent-Length: 0",
    ],
    ids=["length and chunked", "two lengths", "odd coding", "space before colon", "folded", "NUL", "version"],
)
async def test_ambiguous_framing_reaches_no_engine(gateway, engine, head):
    smuggled = b"0\r\n\r\nPOST /v1/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 0\r\n\r\n"
    answer = await raw(gateway, head.replace("KEY", "bw-acme-0123456789abcdef") + "\nConnection: close", smuggled)
    assert answer.startswith(b"HTTP/1.1 4") or not answer
    assert not engine.tenant_records


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"X_Blockwarden_Scope": "None"}, 403, "scope_refused"),
        ({"X_Blockwarden_Scope": "User"}, 403, "scope_refused"),
        ({"X_Blockwarden_Scope": "session"}, 400, "invalid_request"),
        ({"X_Blockwarden_Scope": "Session"}, 400, "invalid_request"),
        ({"X_Blockwarden_Session": "x" * 300}, 400, "invalid_request"),
        ({"Content_Encoding": "gzip"}, 415, "encoding_refused"),
    ],
)
async def test_headers_that_ask_for_too_much_are_refused(gateway, engine, headers, status, code):
    got, answer = await gateway.post(CHAT, ASK, **headers)
    assert (got, answer["error"]["code"]) == (status, code)
    assert not engine.tenant_records


async def test_an_error_has_openais_shape(gateway):
    status, answer = await gateway.post(CHAT, ASK | {"n": 99})
    assert status == 400
    assert answer == {
        "error": {
            "message": "n: Expected `int` <= 16",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_request",
        }
    }


async def test_a_body_that_is_too_large_is_refused_by_its_length_and_by_its_size(gateway, engine):
    key = "Authorization: Bearer bw-acme-0123456789abcdef"
    announced = await raw(gateway, f"POST {CHAT} HTTP/1.1\nHost: g\n{key}\nContent-Length: 99999999\nConnection: close")
    assert announced.startswith(b"HTTP/1.1 413 ")

    async def endless() -> Any:
        for _ in range(5):
            yield b"x" * (1 << 20)

    bearer = {"authorization": "Bearer bw-acme-0123456789abcdef"}
    async with gateway.session.post(gateway.public + CHAT, data=endless(), headers=bearer) as response:
        assert response.status == 413
    assert not engine.tenant_records


async def test_a_body_that_does_not_come_is_not_waited_for(gateway):
    key = "Authorization: Bearer bw-acme-0123456789abcdef"
    answer = await raw(gateway, f"POST {CHAT} HTTP/1.1\nHost: g\n{key}\nContent-Length: 9\nConnection: close", b'{"a"', wait=5)
    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_limits_answer_429_with_the_time_to_wait(gateway, root):
    root.policy["tenants"][0]["limits"] = {"requestsPerMinute": 2}
    root.write()
    gateway.process.mounts.reload()
    assert [(await gateway.post(CHAT, ASK))[0] for _ in range(3)] == [200, 200, 429]
    assert (await gateway.post(CHAT, ASK, key="globex"))[0] == 200
    bearer = {"authorization": "Bearer bw-acme-0123456789abcdef"}
    async with gateway.session.post(gateway.public + CHAT, json=ASK, headers=bearer) as response:
        assert 0 < int(response.headers["retry-after"]) <= 60


async def test_tokens_are_limited_by_what_the_engine_counted(gateway, engine, root):
    root.policy["tenants"][0]["limits"] = {"tokensPerMinute": 3}
    root.write()
    gateway.process.mounts.reload()

    async def refuses(request: web.Request) -> web.Response:
        return web.json_response({}, status=400, headers={layout.BOOT_HEADER: "boot-1"})

    engine.answers.append(refuses)
    assert (await gateway.post(CHAT, ASK))[0] == 400
    assert [(await gateway.post(CHAT, ASK))[0] for _ in range(2)] == [200, 429]


async def test_running_requests_are_limited(gateway, engine, root):
    root.policy["tenants"][0]["limits"] = {"concurrentRequests": 1}
    root.write()
    gateway.process.mounts.reload()
    engine.hold = asyncio.Event()
    held = asyncio.create_task(gateway.post("/v1/completions", {"model": "tiny", "prompt": "x", "stream": True}))
    await gateway.until(lambda: engine.tenant_records)
    assert (await gateway.post(CHAT, ASK))[0] == 429
    engine.hold.set()
    with pytest.raises(json.JSONDecodeError):  # a stream is no JSON document: it did end
        await held
    assert (await gateway.post(CHAT, ASK))[0] == 200


async def test_an_endless_head_is_cut_off(gateway):
    for head in ("X-Long: " + "x" * 3_000_000, "\n".join(f"X-{number}: {'y' * 100}" for number in range(30_000))):
        answer = await raw(gateway, f"GET /v1/models HTTP/1.1\nHost: g\nConnection: close\n{head}")
        assert answer.startswith(b"HTTP/1.1 400 ") or not answer


CHUNKED = "POST /v1/models HTTP/1.1\nHost: g\nTransfer-Encoding: chunked"


async def test_trailers_are_bounded_like_heads_and_mean_nothing(gateway, engine):
    """They come after the answer to a request that nobody authenticated, and uvicorn would keep every one of them."""
    for endless in (b"x: " + b"y" * 3_000_000, b"".join(b"x-%d: y\r\n" % number for number in range(300_000))):
        answer = await raw(gateway, CHUNKED, b"0\r\n" + endless)
        assert answer.count(b"HTTP/1.1 ") <= 2
        assert answer.endswith(b"too large.") or not answer
    body = json.dumps(ASK).encode()
    key = "Authorization: Bearer bw-acme-0123456789abcdef"
    sent = b"%x\r\n%s\r\n0\r\nx-blockwarden-scope: Request\r\n\r\n" % (len(body), body)
    head = f"POST {CHAT} HTTP/1.1\nHost: g\n{key}\nTransfer-Encoding: chunked\nConnection: close"
    assert (await raw(gateway, head, sent)).startswith(b"HTTP/1.1 200 ")


async def test_a_large_body_is_no_large_head(gateway):
    body = {"model": "tiny", "prompt": "x" * 1_000_000}
    assert (await gateway.post("/v1/completions", body))[0] == 200


@pytest.mark.parametrize("begun", [b"", b"GET /v1/models HT", b"GET /v1/models HTTP/1.1\r\nHost: g\r\n"])
async def test_a_head_that_does_not_end_is_not_waited_for(gateway, monkeypatch, begun):
    monkeypatch.setattr(GuardedProtocol, "head_seconds", 0.2)
    host, port = gateway.public.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(begun)
    async with asyncio.timeout(2):
        assert await reader.read() == b""
    writer.close()
