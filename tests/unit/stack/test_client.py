"""A stream counts as answered only when it came to its end: what the steady client's record stands on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from stack.client import Answer, _read_stream

TEXT = {"choices": [{"delta": {"content": "yes"}}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}}}
ERROR = {"error": {"message": "the engine failed to answer: try again", "code": "engine_failed"}}


class Response:
    """As much of http.client.HTTPResponse as a stream needs."""

    status = 200

    def __init__(self, *events: Any) -> None:
        self.events = events

    def __iter__(self) -> Iterator[bytes]:
        for event in self.events:
            yield b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n"
            yield b"\n"

    def getheaders(self) -> list[tuple[str, str]]:
        return [("X-Request-Id", "r")]


def read(*events: Any) -> Answer:
    return _read_stream(Response(*events), 0.0)  # type: ignore[arg-type]


def test_a_stream_that_ends_is_whole() -> None:
    answer = read(TEXT, USAGE, b"[DONE]")
    assert (answer.text, answer.prompt_tokens, answer.cached_tokens, answer.whole) == ("yes", 9, 8, True)


@pytest.mark.parametrize("events", [(TEXT,), (TEXT, ERROR), (TEXT, ERROR, b"[DONE]")])
def test_a_stream_that_breaks_off_is_not(events: tuple[Any, ...]) -> None:
    answer = read(*events)
    assert answer.text == "yes"
    assert not answer.whole
