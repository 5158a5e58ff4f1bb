"""Requests that must not run, at every place that refuses them, streams included, and an engine that goes on."""

from __future__ import annotations

from typing import Any

import pytest

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TEXT = {"prompt": "hi"}
ROUTES = [("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)]
IN_CORE = """
from vllm import SamplingParams
from vllm.v1.engine import EngineCoreRequest
def attempt(salt):
    request = EngineCoreRequest(
        request_id="intruder", prompt_token_ids=[1, 2, 3], mm_features=None, sampling_params=SamplingParams(max_tokens=2),
        pooling_params=None, arrival_time=0.0, lora_request=None, cache_salt=salt, data_parallel_rank=None)
    try:
        core.preprocess_add_request(request)
    except Exception as error:
        return type(error).__name__
    return "admitted"
result = [attempt(salt) for salt in SALTS]
"""


HASHED = """
from vllm import SamplingParams
from vllm.v1.engine import EngineCoreRequest
made, _ = core.preprocess_add_request(EngineCoreRequest(
    request_id="hashed", prompt_token_ids=[1, 2, 3], mm_features=None, sampling_params=SamplingParams(max_tokens=2),
    pooling_params=None, arrival_time=0.0, lora_request=None, cache_salt=TOKEN, data_parallel_rank=None))
result = [made.cache_salt, made.salt_token]
"""


def salts(engine: Any) -> dict[str, str | None]:
    """Code of the refusal -> a cache_salt that earns it."""
    deployment = engine.deployment
    return {
        "salt_missing": None,
        "salt_malformed": "v1.a.1",
        "salt_forged": deployment.token("a", key=b"x" * 32),
        "salt_retired": deployment.token("canary", generation=1),
        "tenant_unknown": deployment.token("nobody"),
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize("code", ["salt_missing", "salt_malformed", "salt_forged", "salt_retired", "tenant_unknown"])
def test_bad_tokens_get_403_streams_included(engine: Any, code: str, path: str, body: dict[str, Any], stream: bool) -> None:
    salt = salts(engine)[code]
    answer = engine.request("POST", path, {"model": "tiny", "stream": stream, "max_tokens": 2, **body, "cache_salt": salt})
    assert answer.status == 403
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("isolation", code)
    assert salt is None or salt not in answer.body.decode()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_transfer_params", {"do_remote_prefill": True}), ("ec_transfer_params", {}), ("vllm_xargs", {"a": 1}),
        ("priority", -1), ("request_id", "x"), ("mm_processor_kwargs", {"a": 1}), ("prompt_embeds", "AA=="),
        ("not_a_field", 1),
    ],
)  # fmt: skip
def test_fields_that_reach_past_the_tenant_are_refused(engine: Any, field: str, value: Any) -> None:
    answer = engine.complete(engine.deployment.token("a"), "hi", **{field: value})
    assert (answer.status, answer.json()["error"]["code"]) == (400, "field_refused")


def test_media_is_refused(engine: Any) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}, "uuid": "theirs"}
    body = {"model": "tiny", "messages": [{"role": "user", "content": [part]}], "cache_salt": engine.deployment.token("a")}
    answer = engine.request("POST", "/v1/chat/completions", body)
    assert (answer.status, answer.json()["error"]["code"]) == (400, "media_refused")


def test_the_engine_core_refuses_by_itself_and_only_that_request(engine: Any) -> None:
    given = [*salts(engine).values(), engine.deployment.token("a")]
    refused = engine.core(f"SALTS = {given!r}\n{IN_CORE}")
    assert refused == ["MissingToken", "MalformedToken", "ForgedToken", "RetiredToken", "UnknownTenant", "admitted"]
    assert engine.complete(engine.deployment.token("a"), "hi").status == 200


def test_blocks_are_hashed_by_the_salt_and_not_by_the_token(engine: Any) -> None:
    token = engine.deployment.token("a")
    made = engine.core(f"TOKEN = {token!r}\n{HASHED}")
    assert made == [token.split(".")[3], token]


def test_no_refusal_touches_a_block(engine: Any) -> None:
    before = engine.wait_for(lambda report: report.pool.dirty == report.pool.scrubbing == 0).pool
    for salt in salts(engine).values():
        engine.complete(salt, "hi " * 100)
    assert engine.report().pool == before
