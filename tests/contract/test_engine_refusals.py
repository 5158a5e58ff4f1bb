"""What the engine refuses inside vLLM, and what the gateway makes of it: one code, written by the one and read by the other.

The engine's hook is the real one. Between the two stands what vLLM does with an exception: its text in `message`, the status as
`code` (tests/integration/engine/gateway sends the same request to the real engine).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest

from blockwarden_core.errors import BlockwardenError, RetiredToken
from blockwarden_core.refusal import NEVER_FITS, read_refusal, render_refusal
from blockwarden_engine import plugin
from blockwarden_engine.errors import NeverFits, RequestRefused
from blockwarden_engine.refusals import Refusals
from blockwarden_gateway.plain import is_retired, plain_refusal

SHARE = "this tenant's share"


class GracefulError(Exception):
    """vLLM's GracefulHTTPError, as far as the hook uses it."""

    def __init__(self, message: str, status: HTTPStatus) -> None:
        super().__init__(message)
        self.status = status


Answer = Callable[[BlockwardenError], tuple[int, bytes]]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Status and body of a request for which the engine's admission raises an error."""
    monkeypatch.setattr(plugin, "hook_api", lambda: SimpleNamespace(GracefulHTTPError=GracefulError))
    monkeypatch.setattr(plugin, "process_admission", lambda: SimpleNamespace(refusals=Refusals()))

    def answered(error: BlockwardenError) -> tuple[int, bytes]:
        def admit(_request: Any) -> Any:
            raise error

        monkeypatch.setattr(plugin, "_admit", admit)
        with pytest.raises(GracefulError) as raised:
            plugin._admitting_input(lambda self: "request")(None)
        status = raised.value.status
        error_body = {"message": str(raised.value), "type": status.phrase, "param": None, "code": status.value}
        return status.value, json.dumps({"error": error_body}).encode()

    return answered


def test_a_request_that_can_never_fit_is_known_by_its_code(answer: Answer) -> None:
    refusal = plain_refusal(*answer(NeverFits("whatever the sentence says")))
    assert (refusal.status, refusal.param) == (400, "max_tokens")
    assert SHARE in refusal.message


def test_a_salt_that_retires_between_middleware_and_engine_is_known_by_its_code(answer: Answer) -> None:
    assert is_retired(*answer(RetiredToken("whatever the sentence says")))


def test_another_refusal_is_not_taken_for_it(answer: Answer) -> None:
    assert SHARE not in plain_refusal(*answer(RequestRefused(f"a prompt may quote {render_refusal(NEVER_FITS, 'this')}"))).message


@pytest.mark.parametrize("text", ["", None, 7, "blockwarden/: x", "Blockwarden/a: x", " blockwarden/a: x", "blockwarden/a:x"])
def test_text_without_a_code_has_none(text: object) -> None:
    assert read_refusal(text) is None
    assert read_refusal(render_refusal(NEVER_FITS, str(text))) == NEVER_FITS


@pytest.mark.parametrize("twin", ["another code", "no code"])
def test_a_side_that_drifts_is_caught(answer: Answer, monkeypatch: pytest.MonkeyPatch, twin: str) -> None:
    if twin == "another code":
        monkeypatch.setattr(NeverFits, "code", "never_fits")
    else:
        monkeypatch.setattr(plugin, "render_refusal", lambda code, sentence: sentence)
    with pytest.raises(AssertionError):
        test_a_request_that_can_never_fit_is_known_by_its_code(answer)
