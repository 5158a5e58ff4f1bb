"""Attestation over real mutual TLS: which engines get traffic, and what happens when one changes under the gateway's hands."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import pytest
from aiohttp import web
from cryptography.x509.oid import ExtendedKeyUsageOID

from blockwarden_core import layout

CHAT = "/v1/chat/completions"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


async def reason(gateway) -> str:
    """Why the only engine gets no traffic, once it has been asked."""
    found: list[str] = []

    async def known() -> bool:
        engines = (await gateway.status())["engines"]
        found[:] = [engine["reason"] for engine in engines]
        return bool(engines) and found != ["not attested yet"]

    await gateway.until(known)
    return found[0]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("no_token_check", "served a request that is unsalted"),
        ("no_floor", "served a request that is retired"),
        ("shares_cache", "shares cache across scopes"),
        ("no_cache", "nothing is proven"),
        ("wrong_policy", "another TenantPolicy"),
        ("missing_hook", "without the hooks worker"),
    ],
)
async def test_an_engine_that_does_not_isolate_gets_no_traffic(engine, start, fault, says):
    engine.faults.add(fault)
    gateway = await start()
    assert says in await reason(gateway)
    status, answer = await gateway.post(CHAT, ASK)
    assert (status, answer["error"]["code"]) == (503, "engine_unavailable")
    assert not engine.tenant_records
    assert (await gateway.inside(layout.READYZ_PATH))[0] == 503
    assert (await gateway.status())["engines"][0]["attested"] is False


async def test_a_sound_engine_is_attested_with_its_identity(gateway):
    [seen] = (await gateway.status())["engines"]
    assert (seen["attested"], seen["podUid"], seen["bootNonce"]) == (True, "engine-pod", "boot-1")


async def test_no_engine_is_503_with_a_time_to_try_again(start, root):
    gateway = await start()
    assert await reason(gateway) == "no connection to the engine"
    bearer = {"authorization": "Bearer bw-acme-0123456789abcdef"}
    async with gateway.session.post(gateway.public + CHAT, json=ASK, headers=bearer) as response:
        assert (response.status, response.headers["retry-after"]) == (503, "2")
        assert (await response.json())["error"]["type"] == "server_error"


@pytest.mark.parametrize("name", ["another.name", "wrong CA"])
async def test_an_engine_with_the_wrong_certificate_is_not_even_asked(start, root, authority, tmp_path, name, make_engine):
    issuer = type(authority)() if name == "wrong CA" else authority
    name = "shared-llama-engine.inference.svc" if name == "wrong CA" else name
    directory = issuer.write(tmp_path / "bad-tls", name, ExtendedKeyUsageOID.SERVER_AUTH)
    async with AsyncExitStack() as stack:
        engine = await make_engine(stack, "127.0.0.1", directory)
        gateway = await start()
        assert await reason(gateway) == "the engine's certificate is not of this policy"
        assert not engine.records


async def test_a_gateway_without_a_client_certificate_of_the_ca_gets_nowhere(engine, start, root, authority):
    stranger = type(authority)()
    stranger.write(root.path / layout.CLIENT_TLS, "stranger", ExtendedKeyUsageOID.CLIENT_AUTH)
    authority.write(root.path / "elsewhere", "x", ExtendedKeyUsageOID.CLIENT_AUTH)
    (root.path / layout.CLIENT_TLS / layout.TLS_CA).write_text((root.path / "elsewhere" / layout.TLS_CA).read_text())
    gateway = await start()
    assert "engine" in await reason(gateway)
    assert (await gateway.post(CHAT, ASK))[0] == 503
    assert not engine.records


async def test_an_engine_that_restarted_is_attested_again_before_it_serves(gateway, engine):
    assert (await gateway.post(CHAT, ASK))[0] == 200
    engine.restart("boot-2")
    first, _ = await gateway.post(CHAT, ASK)
    assert first in (200, 503)
    canaries = len(engine.records) - len(engine.tenant_records)

    async def again() -> bool:
        return (await gateway.status())["engines"][0]["bootNonce"] == "boot-2"

    await gateway.until(again)
    assert len(engine.records) - len(engine.tenant_records) > canaries
    assert (await gateway.post(CHAT, ASK))[0] == 200
    assert dict(engine.tenant_records[-1].headers)["x-blockwarden-boot"] == "boot-2"


async def test_an_engine_that_forgets_to_check_the_nonce_is_caught_by_its_answer(gateway, engine):
    engine.faults.add("no_boot_check")
    engine.restart("boot-2")
    engine.faults.add("no_token_check")
    status, answer = await gateway.post(CHAT, ASK)
    assert status == 503
    assert "one two three" not in json.dumps(answer)

    async def caught() -> bool:
        return "unsalted" in await reason(gateway)

    await gateway.until(caught)


async def test_a_retired_salt_is_derived_again_and_sent_once_more(gateway, engine, root):
    root.keyring["generations"]["acme"] = 2
    root.write()
    engine.floors["acme"] = 2
    status, _ = await gateway.post(CHAT, ASK)
    assert status == 200
    generations = [record.body["cache_salt"].split(".")[2] for record in engine.tenant_records]
    assert generations in (["1", "2"], ["2"])


async def test_a_retired_salt_without_a_newer_one_is_503(gateway, engine):
    engine.floors["acme"] = 2
    status, answer = await gateway.post(CHAT, ASK | {"stream": True})
    assert (status, answer["error"]["code"]) == (503, "engine_unavailable")
    assert len(engine.tenant_records) == 1


async def dies(request: web.Request) -> web.Response:
    """Ends the connection without a byte, as a server that closes an idle connection at the wrong moment."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def test_a_kept_connection_that_dies_is_tried_once_more(gateway, engine):
    assert (await gateway.post(CHAT, ASK))[0] == 200
    engine.answers.append(dies)
    assert (await gateway.post(CHAT, ASK))[0] == 200
    assert len(engine.tenant_records) == 3
    assert (await gateway.post(CHAT, ASK))[0] == 200
    engine.answers += [dies, dies]
    status, answer = await gateway.post(CHAT, ASK)
    assert (status, answer["error"]["code"]) == (502, "engine_failed")
    assert len(engine.tenant_records) == 6


@pytest.mark.parametrize(
    ("status", "body", "own"),
    [
        (400, {"error": {"message": "salt v1.acme.1.leak is odd", "code": 400}}, 400),
        (500, {"error": {"message": "Traceback v1.acme.1.leak"}}, 502),
        (503, {"detail": "v1.acme.1.leak"}, 503),
        (200, {"error": "v1.acme.1.leak"}, 502),
        (200, {"error": {"message": "v1.acme.1.leak", "code": 400}}, 400),
        (200, {"choices": "v1.acme.1.leak"}, 502),
    ],
)
async def test_an_engines_words_do_not_reach_the_client(gateway, engine, status, body, own):
    async def answer(request: web.Request) -> web.Response:
        return web.json_response(body, status=status, headers={layout.BOOT_HEADER: "boot-1", "x-secret": "leak"})

    engine.answers.append(answer)
    bearer = {"authorization": "Bearer bw-acme-0123456789abcdef"}
    async with gateway.session.post(gateway.public + CHAT, json=ASK, headers=bearer) as response:
        assert response.status == own
        assert (await response.json())["error"].keys() == {"message", "type", "param", "code"}
        assert "leak" not in await response.text() + str(response.headers)


async def test_a_stream_that_breaks_says_so_and_does_not_look_complete(gateway, engine):
    async def breaks(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={layout.BOOT_HEADER: "boot-1"})
        await response.prepare(request)
        choice = {"index": 0, "finish_reason": None, "delta": {"content": "one"}}
        event = {"object": "chat.completion.chunk", "created": 1, "choices": [choice]}
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b'data: {"error": {"message": "v1.acme.1.leak"}}\n\n')
        return response

    engine.answers.append(breaks)
    bearer = {"authorization": "Bearer bw-acme-0123456789abcdef"}
    async with gateway.session.post(gateway.public + CHAT, json=ASK | {"stream": True}, headers=bearer) as response:
        text = await response.text()
    assert '"code":"engine_failed"' in text
    assert "leak" not in text
    assert "[DONE]" not in text


@pytest.mark.parametrize(("code", "status"), [(500, 502), (400, 400), (403, 503)])
async def test_a_stream_that_fails_before_its_first_event_has_a_status(gateway, engine, code, status):
    event = b'data: {"error": {"message": "leak", "code": %d}}\n\ndata: [DONE]\n\n' % code

    async def fails(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={layout.BOOT_HEADER: "boot-1"})
        await response.prepare(request)
        await response.write(event)
        return response

    engine.answers.append(fails)
    got, answer = await gateway.post(CHAT, ASK | {"stream": True})
    assert got == status
    assert "leak" not in json.dumps(answer)


async def test_two_engines_share_the_work_and_one_that_goes_is_replaced(engine, start, root, engine_tls, make_engine):
    async with AsyncExitStack() as stack:
        other = await make_engine(stack, "127.0.0.2", engine_tls)
        other.pod_uid = "engine-pod-2"
        port = root.policy["engine"]["port"]
        addresses = {f"127.0.0.1:{port}", f"127.0.0.2:{port}"}

        async def resolve(_: object) -> frozenset[str]:
            return frozenset(addresses)

        gateway = await start(resolve=resolve)

        async def both() -> bool:
            return [engine["attested"] for engine in (await gateway.status())["engines"]] == [True, True]

        await gateway.until(both)
        for number in range(40):
            assert (await gateway.post(CHAT, ASK, X_Blockwarden_Session=f"s{number}"))[0] == 200
        assert min(len(engine.tenant_records), len(other.tenant_records)) >= 5
        same = [await gateway.post(CHAT, ASK, X_Blockwarden_Session="s1") for _ in range(3)]
        assert [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for _, answer in same] == [0, 0, 0]
        await stack.aclose()
        statuses = [(await gateway.post(CHAT, ASK, X_Blockwarden_Session=f"s{number}"))[0] for number in range(40)]
        assert set(statuses) == {200}


async def test_a_client_that_leaves_ends_the_request_at_the_engine(gateway, engine):
    engine.hold = asyncio.Event()
    bearer = {"authorization": "Bearer bw-acme-0123456789abcdef"}
    async with gateway.session.post(gateway.public + CHAT, json=ASK | {"stream": True}, headers=bearer) as response:
        await response.content.readany()
        assert (await gateway.status())["inFlight"] == {"acme": {"1": 1}}
        response.close()
    await gateway.until(lambda: engine.closed_early == 1, seconds=2)

    async def over() -> bool:
        return (await gateway.status())["inFlight"] == {}

    await gateway.until(over)


async def test_a_client_that_leaves_before_the_first_byte_ends_it_too(gateway, engine):
    waiting = asyncio.Event()
    ended: list[bool] = []

    async def slow(request: web.Request) -> web.Response:
        waiting.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append(True)
            raise
        return web.Response()

    engine.answers.append(slow)
    task = asyncio.create_task(gateway.post(CHAT, ASK))
    await waiting.wait()
    task.cancel()
    await gateway.until(lambda: ended, seconds=2)


async def test_a_client_that_does_not_read_stops_the_engine(gateway, engine):
    written = [0]
    choice = {"index": 0, "finish_reason": None, "delta": {"content": "x" * 60_000}}
    chunk = b"data: " + json.dumps({"object": "c", "created": 1, "choices": [choice]}).encode() + b"\n\n"

    async def floods(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={layout.BOOT_HEADER: "boot-1"})
        await response.prepare(request)
        while written[0] < 2000:
            await response.write(chunk)
            written[0] += 1
        return response

    engine.answers.append(floods)
    bearer = {"authorization": "Bearer bw-acme-0123456789abcdef"}
    async with gateway.session.post(gateway.public + CHAT, json=ASK | {"stream": True}, headers=bearer) as response:
        await asyncio.sleep(0.7)
        stalled = written[0]
        await asyncio.sleep(0.3)
        assert written[0] == stalled < 1000
        response.close()
