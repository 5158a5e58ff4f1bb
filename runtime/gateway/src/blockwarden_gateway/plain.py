"""What a client is told when an engine refuses: our own sentence. Pure.

An engine's text may quote parts of a request, our token among them, so nothing of it is passed on but a number.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from blockwarden_core.errors import RetiredToken
from blockwarden_core.refusal import NEVER_FITS, read_refusal

from .errors import EngineFailed, EngineUnavailable, InvalidRequest, LimitReached, Refusal

_KNOWN: Final[tuple[tuple[re.Pattern[str], str, str], ...]] = (
    (
        re.compile(r"maximum context length is (\d{1,9}) tokens"),
        "the prompt does not fit the model's context of {0} tokens together with its answer: shorten it or lower max_tokens",
        "max_tokens",
    ),
    (
        re.compile(r"^max\w*=\d+ cannot be greater than \w+=(\d{1,9})\."),
        "max_tokens: the answer asked for is longer than the model's context of {0} tokens: lower it",
        "max_tokens",
    ),
    (
        re.compile(r"tool[- ]call[- ]parser"),
        "tools: the model is served without tool calls here: leave tools out or set tool_choice to none",
        "tools",
    ),
)
"""What vLLM says, what the client is told, and which field it is about; only digits are taken over.
vLLM has no codes for these."""
_QUESTIONABLE: Final = frozenset({400, 413, 422})


def error_code(body: bytes) -> str | None:
    """The code in an engine's error answer: our middleware's own, or the one that an error of vLLM's carries in its text."""
    return _code(_error(body))


def is_retired(status: int, body: bytes) -> bool:
    return status == 403 and error_code(body) == RetiredToken.code


def plain_refusal(status: int, body: bytes) -> Refusal:
    """The answer to the client for an engine's answer that is not 200."""
    if status in _QUESTIONABLE:
        return _invalid(_error(body))
    if status == 429:
        return LimitReached("the engine has no room for this tenant right now: try again shortly", retry_after=1)
    if status in (403, 503):
        # 403: a tenant or key that this engine does not have yet. It reads its policy from another object than we do.
        return EngineUnavailable("the engine does not serve this tenant right now: try again shortly", retry_after=2)
    return EngineFailed("the engine failed to answer: try again")


def _invalid(error: dict[str, Any]) -> InvalidRequest:
    if _code(error) == NEVER_FITS:
        said = "the request is larger than this tenant's share of the engine: shorten the prompt or lower max_tokens"
        return InvalidRequest(said, param="max_tokens")
    text = str(error.get("message", ""))
    for pattern, sentence, param in _KNOWN:
        if match := pattern.search(text):
            return InvalidRequest(sentence.format(*match.groups()), param=param)
    return InvalidRequest("the engine refused the request: check prompt, sampling fields and schema against the model")


def _code(error: dict[str, Any]) -> str | None:
    code = error.get("code")
    return code if isinstance(code, str) else read_refusal(error.get("message"))


def _error(body: bytes) -> dict[str, Any]:
    try:
        error = msgspec.json.decode(body)["error"]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}
