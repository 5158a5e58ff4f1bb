"""Bodies that the engine refuses although their token is good, and those that it takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from blockwarden_engine.body import REFUSED_FIELDS, check_body, parse_body
from blockwarden_engine.errors import BodyRefused

DECLARED = REFUSED_FIELDS | {"model", "prompt", "messages", "cache_salt"}


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"[]", b"1", b"{", b'{"a":1,"a":2}', b'{"a":{"b":1,"b":1}}', b'{"a":NaN}', b'{"a":-Infinity}', b"\xff\xfe{\x00}\x00",
        '{"a":1}'.encode("utf-16"), b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_not_one_unambiguous_object_is_refused(raw: bytes) -> None:
    with pytest.raises(BodyRefused) as refused:
        parse_body(raw)
    assert (refused.value.status, refused.value.code) == (400, "body_malformed")


def test_an_object_is_taken_as_it_is() -> None:
    assert parse_body('{"prompt":"grüße","n":1}'.encode()) == {"prompt": "grüße", "n": 1}


@pytest.mark.parametrize("field", sorted(REFUSED_FIELDS))
def test_fields_that_vllm_acts_on_are_refused(field: str) -> None:
    with pytest.raises(BodyRefused) as refused:
        check_body({"prompt": "x", field: {"do_remote_prefill": True}}, DECLARED)
    assert refused.value.code == "field_refused"


def test_a_field_that_vllm_does_not_declare_is_refused_and_not_repeated() -> None:
    with pytest.raises(BodyRefused) as refused:
        check_body({"prompt": "x", "top-secret": 1}, DECLARED)
    assert "top-secret" not in str(refused.value)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "text", "text": "x", "uuid": "1"}, {"image_url": "x"},
        {"type": "input_audio"}, {"text": "x"}, 7, {"type": "text", "text": "x", "image_url": "y"},
    ],
)  # fmt: skip
def test_parts_that_are_not_plain_text_are_refused(part: Any) -> None:
    with pytest.raises(BodyRefused) as refused:
        check_body({"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]}, DECLARED)
    assert refused.value.code == "media_refused"


def test_text_messages_pass() -> None:
    messages = [{"role": "user", "content": "hello"}, {"role": "user", "content": [{"type": "text", "text": "x"}, "y"]}]
    check_body(json.loads(json.dumps({"messages": messages, "cache_salt": "t", "priority": None})), DECLARED)
