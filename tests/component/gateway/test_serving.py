"""What a client gets through a gateway that serves, and what the engine saw of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from blockwarden_gateway.routes import GENERATION

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "word " * 64}]},
    COMPLETIONS: {"model": "tiny", "prompt": "word " * 64},
}
"""One body for each route: a route without one fails the tests below."""
ROUTES = sorted(GENERATION)


async def events(gateway, path: str, body: dict[str, Any], **headers: str) -> list[Any]:
    """The data of a stream's events."""
    bearer = {"authorization": "Bearer bw-acme-0123456789abcdef"}
    async with gateway.session.post(gateway.public + path, json=body, headers=bearer | headers) as response:
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = (await response.text()).split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines)
    return [line[6:] if line[6:] == "[DONE]" else json.loads(line[6:]) for line in lines]


def cached(answer: Any) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize("path", ROUTES)
async def test_an_answer_is_rebuilt(gateway, path):
    status, answer = await gateway.post(path, BODIES[path])
    assert status == 200
    assert answer.keys() == {"id", "object", "created", "model", "choices", "usage"}
    assert "gw-" in answer["id"]
    assert "one two three" in json.dumps(answer["choices"])


@pytest.mark.parametrize("path", ROUTES)
async def test_a_tenant_hits_its_own_cache_and_nobody_elses(gateway, path):
    hits = [cached((await gateway.post(path, BODIES[path], key=key))[1]) for key in ("acme", "acme", "globex", "globex")]
    assert hits[0] == hits[2] == 0
    assert hits[1] == hits[3] > 0


@pytest.mark.parametrize("path", ROUTES)
async def test_a_client_that_sends_the_neighbours_token_hits_nothing(gateway, engine, path):
    await gateway.post(path, BODIES[path], key="globex")
    stolen = engine.tenant_records[-1].body["cache_salt"]
    forged = {"cache_salt": stolen, "kv_transfer_params": {"x": 1}, "vllm_xargs": {"cache_salt": stolen}, "priority": -1}
    _, answer = await gateway.post(path, BODIES[path] | forged, X_Tenant_Id="globex", X_Request_Id="mine", Cookie="a=b")
    assert cached(answer) == 0
    assert stolen not in json.dumps(engine.tenant_records[-1].body)
    assert engine.tenant_records[-1].body["cache_salt"].startswith("v1.acme.1.")


@pytest.mark.parametrize("path", ROUTES)
async def test_an_engine_gets_our_headers_only(gateway, engine, path):
    hostile = {"X_Request_Id": "mine", "X_Session_Id": "s", "X_Vllm_Priority": "1", "X_data_parallel_rank": "0",
               "Cookie": "a=b", "User_Agent": "curl", "Accept": "x/y", "Traceparent": "00-1"}  # fmt: skip
    await gateway.post(path, BODIES[path], **hostile)
    headers = dict(engine.tenant_records[-1].headers)
    assert headers.keys() == {"host", "content-type", "content-length", "x-request-id", "x-blockwarden-boot"}
    assert headers["x-request-id"].startswith("gw-")
    assert headers["host"] == "shared-llama-engine.inference.svc"


async def test_a_session_narrows_what_is_shared(gateway):
    ask = BODIES[CHAT]
    assert cached((await gateway.post(CHAT, ask))[1]) == 0
    assert cached((await gateway.post(CHAT, ask, X_Blockwarden_Session="one"))[1]) == 0
    assert cached((await gateway.post(CHAT, ask, X_Blockwarden_Session="one"))[1]) > 0
    assert cached((await gateway.post(CHAT, ask, X_Blockwarden_Scope="Request"))[1]) == 0
    assert cached((await gateway.post(CHAT, ask, X_Blockwarden_Scope="Request"))[1]) == 0
    assert cached((await gateway.post(CHAT, ask, key="acme-bob", X_Blockwarden_Scope="User"))[1]) == 0


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("asked", [True, False])
async def test_a_stream_hides_the_usage_that_nobody_asked_for(gateway, engine, path, asked):
    options = {"stream_options": {"include_usage": asked, "continuous_usage_stats": True}}
    got = await events(gateway, path, BODIES[path] | {"stream": True} | options)
    assert got[-1] == "[DONE]"
    assert len({event["id"] for event in got[:-1]}) == 1
    assert len(got) == (5 if asked else 4)
    assert ("usage" in got[-2]) is asked
    assert not any("kv_transfer_params" in event for event in got[:-1])
    assert engine.tenant_records[-1].body["stream_options"] == {"include_usage": True}
    assert 'kind="prompt",tenant="acme"' in (await gateway.inside("/metrics"))[1]


async def test_a_tenants_alias_is_mapped_there_and_back(gateway, engine, root):
    root.policy["tenants"][0]["models"] = [{"name": "fast", "served": "tiny"}]
    root.write()
    gateway.process.mounts.reload()
    status, answer = await gateway.post(CHAT, BODIES[CHAT] | {"model": "fast"})
    assert (status, answer["model"]) == (200, "fast")
    assert engine.tenant_records[-1].body["model"] == "tiny"
    refused = [await gateway.post(CHAT, BODIES[CHAT] | {"model": name}) for name in ("tiny", "no such")]
    assert refused[0] == refused[1]
    assert refused[0][0] == 404
    assert refused[0][1]["error"]["code"] == "model_not_found"


async def test_models_are_the_tenants_own(gateway, root):
    root.policy["tenants"][0]["models"] = [{"name": "org/fast", "served": "tiny"}]
    root.write()
    gateway.process.mounts.reload()

    async def get(path: str, key: str) -> tuple[int, Any]:
        bearer = {"authorization": f"Bearer bw-{key}-0123456789abcdef"}
        async with gateway.session.get(gateway.public + path, headers=bearer) as response:
            return response.status, json.loads(await response.read())

    assert [model["id"] for model in (await get("/v1/models", "acme"))[1]["data"]] == ["org/fast"]
    assert [model["id"] for model in (await get("/v1/models", "globex"))[1]["data"]] == ["tiny"]
    assert (await get("/v1/models/org/fast", "acme"))[1]["id"] == "org/fast"
    assert (await get("/v1/models/org/fast", "globex"))[0] == 404
    assert (await get("/v1/models", "nobody"))[0] == 401


async def test_what_the_policy_does_not_expose_is_not_shown(gateway, root):
    root.policy["exposeCachedTokens"] = False
    root.write()
    gateway.process.mounts.reload()
    _, answer = await gateway.post(CHAT, BODIES[CHAT])
    assert "prompt_tokens_details" not in answer["usage"]
