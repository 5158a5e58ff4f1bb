"""Bodies in, upstream bodies out: what is kept, what vanishes, what is refused with which field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from blockwarden_gateway.errors import InvalidRequest, MediaRefused
from blockwarden_gateway.routes import GENERATION, ModelsRoute, find_route
from blockwarden_gateway.routes.call import BEGINNING

CHAT = GENERATION["/v1/chat/completions"]
COMPLETION = GENERATION["/v1/completions"]
USER = {"role": "user", "content": "hi"}
DANGEROUS = {
    "cache_salt": "v1.globex.1.stolen",
    "kv_transfer_params": {"do_remote_prefill": True},
    "ec_transfer_params": {},
    "vllm_xargs": {"session_id": "x"},
    "request_id": "mine",
    "session_id": "mine",
    "priority": -100,
    "mm_processor_kwargs": {},
    "media_io_kwargs": {},
    "multi_modal_uuids": {"image": ["u"]},
    "chat_template": "{{ evil }}",
    "prompt_embeds": "AAAA",
    "prompt_logprobs": 5,
    "user": "colleague",
    "metadata": {},
    "service_tier": "priority",
    "store": True,
    "prompt_cache_key": "k",
    "return_token_ids": True,
    "documents": [{}],
    "truncate_prompt_tokens": -1,
    "allowed_token_ids": [1],
    "use_beam_search": True,
}
KEPT = {
    "stream": True, "max_tokens": 5, "min_tokens": 1, "n": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1,
    "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1, "seed": 7, "stop": ["\n"],
    "stop_token_ids": [2], "include_stop_str_in_output": True, "ignore_eos": True, "logit_bias": {"5": -1.0},
    "response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a+"},
}  # fmt: skip
KEPT_CHAT = KEPT | {
    "max_completion_tokens": 9, "logprobs": True, "top_logprobs": 3, "tool_choice": "auto", "parallel_tool_calls": False,
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
    "reasoning_effort": "low", "include_reasoning": False, "chat_template_kwargs": {"enable_thinking": False},
}  # fmt: skip


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER]} | fields).encode()


def completion(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "hi"} | fields).encode()


def upstream(route: Any, body: bytes) -> dict[str, Any]:
    sent: dict[str, Any] = json.loads(route.parse(body).upstream(model="served", cache_salt="OURS"))
    return sent


def test_what_is_declared_is_kept():
    expected = KEPT_CHAT | {"model": "served", "messages": [USER], "cache_salt": "OURS"}
    assert upstream(CHAT, chat(**KEPT_CHAT)) == expected | {"stream_options": {"include_usage": True}}
    expected = KEPT | {"model": "served", "prompt": "hi", "logprobs": 2, "echo": False, "cache_salt": "OURS"}
    sent = upstream(COMPLETION, completion(**KEPT, logprobs=2, echo=False))
    assert sent == expected | {"stream_options": {"include_usage": True}}


@pytest.mark.parametrize("field", sorted(DANGEROUS))
@pytest.mark.parametrize(("route", "body"), [(CHAT, chat), (COMPLETION, completion)], ids=["chat", "completions"])
def test_what_is_not_declared_vanishes(route, body, field):
    assert upstream(route, body(**{field: DANGEROUS[field]})) == upstream(route, body())


def test_a_salt_is_set_whatever_the_client_sent():
    for value in ("", None, "x" * 10_000, 5, ["OURS"], {"a": 1}):
        assert upstream(CHAT, chat(cache_salt=value))["cache_salt"] == "OURS"


def test_the_last_of_two_equal_keys_counts_and_is_sent_once():
    sent = CHAT.parse(b'{"model":"a","model":"b","cache_salt":"x","messages":[{"role":"user","content":"hi"}]}')
    assert sent.model == "b"
    assert sent.upstream(model="served", cache_salt="OURS").count(b'"model"') == 1


def test_parts_of_text_are_rebuilt_without_what_rides_along():
    part = {"type": "text", "text": "t", "uuid": "u1", "image_url": {"url": "http://169.254.169.254/"}}
    sent = upstream(CHAT, chat(messages=[{"role": "user", "content": [part], "mm_processor_kwargs": {}}]))
    assert sent["messages"] == [{"role": "user", "content": [{"type": "text", "text": "t"}]}]


def test_a_conversation_with_tools_passes():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "s"},
        USER,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
    ]
    assert upstream(CHAT, chat(messages=messages))["messages"] == messages


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:,x"}},
        {"type": "image_url", "image_url": None, "uuid": "u1"},
        {"type": "input_audio", "input_audio": {}},
        {"type": "video_url", "video_url": {}},
        {"type": "image_embeds", "image_embeds": "AAAA"},
        {"type": "file", "file": {}},
        {"type": "image_pil"},
    ],
    ids=lambda part: part["type"],
)
def test_media_is_refused_in_one_sentence(part):
    with pytest.raises(MediaRefused, match="parts of type text only") as refused:
        CHAT.parse(chat(messages=[USER, {"role": "user", "content": [{"type": "text", "text": "t"}, part]}]))
    assert (refused.value.status, refused.value.param) == (400, "messages[1].content[1]")


def deep(levels: int) -> dict[str, Any]:
    node: dict[str, Any] = {}
    for _ in range(levels):
        node = {"properties": node}
    return node


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": value}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]}]}, "messages[0].tool_calls"),
        ({"n": 17}, "n"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**9}, "max_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids"),
        ({"logit_bias": {"five": 1.0}}, "logit_bias"),
        ({"logit_bias": {str(number): 1.0 for number in range(301)}}, "logit_bias"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "structural_tag"}}, "response_format.type"),
        ({"response_format": schema(deep(40))}, "response_format.json_schema.schema"),
        ({"response_format": schema({"enum": list(range(10_001))})}, "response_format.json_schema.schema"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"grammar": "root ::= 'x'"}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a" * 1025}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json": deep(40)}}, "structured_outputs.json"),
        ({"tools": [{"type": "mcp"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": deep(40)}}]},
         "tools[0].function.parameters"),
        ({"seed": 2**63}, "seed"),
        ({"stream": "yes"}, "stream"),
    ],
)  # fmt: skip
def test_what_is_out_of_bounds_is_refused_with_its_field(fields, param):
    with pytest.raises(InvalidRequest) as refused:
        CHAT.parse(chat(**fields))
    assert refused.value.param == param
    assert refused.value.message.startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": ["x"] * 65}, "n"),
        ({"prompt": ["x"] * 5, "n": 16}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": 1, "echo": True}, "echo"),
    ],
)
def test_prompts_have_one_kind_and_a_bounded_number(fields, param):
    with pytest.raises(InvalidRequest) as refused:
        COMPLETION.parse(completion(**fields))
    assert refused.value.param == param


@pytest.mark.parametrize("prompt", ["hi", ["hi", "ho"], [1, 2, 3], [[1, 2], [3]]])
def test_every_kind_of_prompt_passes(prompt):
    assert upstream(COMPLETION, completion(prompt=prompt))["prompt"] == prompt


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[]",
        b"null",
        json.dumps({"model": "m", "prompt": "hi"}).encode("utf-16"),
        json.dumps({"model": "m", "prompt": "hi"}).encode("utf-32"),
        b'{"model":"m","prompt":"\xff"}',
        b'{"model":"m","prompt":"\\ud800"}',
        b'{"model":"m","prompt":"hi"}{"cache_salt":"x"}',
        b'{"model":"m","prompt":"hi","temperature":NaN}',
        b'{"a":' * 100_000,
        b'{"model":"m","prompt":"hi","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_what_is_not_one_json_object_in_utf8_is_refused(body):
    with pytest.raises(InvalidRequest):
        COMPLETION.parse(body)


def test_a_refusal_never_quotes_the_body():
    secret = "canary-3f9a"
    for body in (chat(n=secret), chat(temperature=secret), chat(messages=[{"role": "user", "content": {secret: 1}}])):
        with pytest.raises(InvalidRequest) as refused:
            CHAT.parse(body)
        assert secret not in refused.value.message


def test_requests_with_a_common_beginning_share_it_and_it_is_bounded():
    system = {"role": "system", "content": "s" * 5000}
    first = CHAT.parse(chat(messages=[system, USER]))
    later = CHAT.parse(chat(messages=[system, {"role": "user", "content": "other"}]))
    assert first.beginning == later.beginning
    assert len(first.beginning) == BEGINNING
    assert CHAT.parse(chat()).beginning != first.beginning
    tokens = COMPLETION.parse(completion(prompt=list(range(5000))))
    assert len(tokens.beginning) == BEGINNING


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/chat/completions"), ("POST", "/v1/chat/completions/"), ("POST", "/V1/chat/completions"),
        ("POST", "//v1/chat/completions"), ("POST", "/v1/models"), ("GET", "/v1/models/"), ("GET", "/metrics"),
        ("POST", "/v1/responses"), ("GET", "/health"), ("POST", "/v1/chat/completions/batch"), ("OPTIONS", "/v1/models"),
        ("HEAD", "/v1/models"), ("POST", "/tokenize"), ("POST", "/v1/completions/render"),
    ],
)  # fmt: skip
def test_whatever_is_not_in_the_table_is_no_route(method, path):
    assert find_route(method, path) is None


def test_a_models_name_may_hold_a_slash():
    assert find_route("GET", "/v1/models/org/model") == ModelsRoute("org/model")
