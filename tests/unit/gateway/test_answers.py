"""An engine's bytes in, a client's bytes out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from blockwarden_gateway.errors import Broken, Reported
from blockwarden_gateway.routes import GENERATION
from blockwarden_gateway.routes.call import Tally, View
from blockwarden_gateway.sse import DONE, MAX_EVENT, EventParser, event

CHAT = GENERATION["/v1/chat/completions"]
COMPLETION = GENERATION["/v1/completions"]
VIEW = View("chatcmpl-gw-1", "alias", expose_cached=False, include_usage=False)
OPEN = View("chatcmpl-gw-1", "alias", expose_cached=True, include_usage=True)
USAGE = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
INTERNAL = {
    "kv_transfer_params": {"remote_host": "10.0.0.9"}, "ec_transfer_params": {}, "metrics": {"load": 1}, "prompt_logprobs": [],
    "system_fingerprint": "fp", "service_tier": "x", "prompt_token_ids": [1], "cache_salt": "v1.acme.1.s.t", "later": 1,
}  # fmt: skip


def answer(choice: dict[str, Any] | None, usage: dict[str, Any] | None = None, **fields: Any) -> bytes:
    choices = [] if choice is None else [{"index": 0, "finish_reason": None} | choice]
    document = {"id": "engine-id", "object": "chat.completion", "created": 5, "model": "served", "choices": choices}
    return json.dumps(document | {"usage": usage} | fields).encode()


MESSAGE = {"message": {"role": "assistant", "content": "hi", "internal": 1, "reasoning": "r"}, "token_ids": [1]}


def test_an_answer_shows_only_what_is_declared():
    filtered = CHAT.filter_reply(answer(MESSAGE, USAGE, **INTERNAL), VIEW)
    assert json.loads(filtered.body or b"") == {
        "id": "chatcmpl-gw-1", "object": "chat.completion", "created": 5, "model": "alias", "usage": USAGE,
        "choices": [{
            "index": 0, "finish_reason": None, "logprobs": None,
            "message": {"role": "assistant", "content": "hi", "reasoning": "r"},
        }],
    }  # fmt: skip
    assert filtered.tally == Tally(10, 2, 0)


@pytest.mark.parametrize(("details", "cached"), [(None, 0), ({"cached_tokens": 8, "secret": 1}, 8), ({"cached_tokens": None}, 0)])
def test_cached_tokens_show_where_the_policy_says_so_and_count_always(details, cached):
    body = answer(MESSAGE, USAGE | {"prompt_tokens_details": details})
    hidden, shown = CHAT.filter_reply(body, VIEW), CHAT.filter_reply(body, OPEN)
    assert "prompt_tokens_details" not in json.loads(hidden.body or b"")["usage"]
    assert json.loads(shown.body or b"")["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}
    assert hidden.tally == shown.tally == Tally(10, 2, cached)


def test_log_probabilities_and_tool_calls_pass():
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    token = {"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": [{"token": "b", "logprob": -2.0, "bytes": None}]}
    choice = {"message": {"content": None, "tool_calls": [call]}, "logprobs": {"content": [token]}}
    shown = json.loads(CHAT.filter_reply(answer(choice), VIEW).body or b"")["choices"][0]
    assert (shown["message"], shown["logprobs"]) == (choice["message"], choice["logprobs"])


def test_a_completion_answer_passes():
    logprobs = {"text_offset": [0], "token_logprobs": [None], "tokens": ["a"], "top_logprobs": [None]}
    shown = json.loads(COMPLETION.filter_reply(answer({"text": "hi", "logprobs": logprobs}), VIEW).body or b"")
    assert shown["choices"] == [{"index": 0, "finish_reason": None, "text": "hi", "logprobs": logprobs}]


def test_the_usage_that_the_client_did_not_ask_for_is_hidden_and_counted():
    last = CHAT.filter_event(answer(None, USAGE), VIEW)
    assert (last.body, last.tally, last.content) == (None, Tally(10, 2, 0), False)
    asked = CHAT.filter_event(answer(None, USAGE), OPEN)
    assert json.loads(asked.body or b"")["usage"] == USAGE | {"prompt_tokens_details": {"cached_tokens": 0}}


def test_an_event_shows_only_what_is_declared():
    filtered = CHAT.filter_event(answer({"delta": {"content": "hi", "x": 1}}, **INTERNAL), VIEW)
    shown = json.loads(filtered.body or b"")
    assert shown["choices"] == [{"index": 0, "finish_reason": None, "logprobs": None, "delta": {"content": "hi"}}]
    assert shown.keys() == {"id", "object", "created", "model", "choices"}
    assert filtered.content


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"error":{"message":"salt v1.acme.1.s.t is bad","code":400}}', "reported an error"),
        (b'{"error":{"message":"salt v1.acme.1.s.t is bad"}}', "reported an error"),
        (b"{}", "unreadable"),
        (b"\xff", "unreadable"),
        (b"[" * 100_000, "unreadable"),
        (b'{"choices": "none"}', "unreadable"),
    ],
)
@pytest.mark.parametrize("name", ["filter_reply", "filter_event"])
def test_what_is_not_an_answer_breaks_and_is_not_quoted(body, says, name):
    with pytest.raises(Broken, match=says) as broken:
        getattr(CHAT, name)(body, VIEW)
    assert "v1.acme" not in str(broken.value)


STREAM = b'data: {"a":1}\n\n: ping\n\ndata: {"b":\ndata: 2}\r\n\r\nevent: x\nid: 4\ndata:[DONE]\n\n'


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_found_however_the_bytes_arrive(size):
    parser = EventParser()
    found = [data for start in range(0, len(STREAM), size) for data in parser.feed(STREAM[start : start + size])]
    assert found == [b'{"a":1}', b'{"b":\n2}', DONE]


def test_an_endless_event_breaks():
    parser = EventParser()
    with pytest.raises(Broken, match="too large"):
        list(parser.feed(b"data: " + b"x" * MAX_EVENT))


def test_an_event_is_framed():
    assert event(DONE) == b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("code", "status"), [(400, 400), ("503", 503), (None, 500), ("salt_retired", 500), (200, 500), (9**9, 500)]
)
def test_an_error_in_an_answers_place_keeps_the_status_it_would_have_had(code, status):
    with pytest.raises(Reported) as reported:
        CHAT.filter_event(json.dumps({"error": {"message": "x", "code": code}}).encode(), VIEW)
    assert reported.value.status == status
