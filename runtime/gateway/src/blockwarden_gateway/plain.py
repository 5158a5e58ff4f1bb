"""What a client is told when an engine refuses: our own sentence. Pure.

An engine's text may quote parts of a request, our token among them, so nothing of it is passed on but a number.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from blockwarden_core.errors import RetiredToken

from .errors import EngineFailed, EngineUnavailable, InvalidRequest, LimitReached, Refusal

_CONTEXT: Final = re.compile(r"maximum (?:context|model) length (?:is|of) (\d{1,9})", re.IGNORECASE)
_QUESTIONABLE: Final = frozenset({400, 413, 422})


def error_code(body: bytes) -> str | None:
    """The code in an engine's error answer."""
    code = _error(body).get("code")
    return code if isinstance(code, str) else None


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
    context = _CONTEXT.search(str(error.get("message", "")))
    if context:
        return InvalidRequest(
            f"the prompt and the answer asked for do not fit the model's context of {context[1]} tokens: "
            "shorten the prompt or lower max_tokens",
            param="max_tokens",
        )
    return InvalidRequest("the engine refused the request: check prompt, sampling fields and schema against the model")


def _error(body: bytes) -> dict[str, Any]:
    try:
        error = msgspec.json.decode(body)["error"]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}
