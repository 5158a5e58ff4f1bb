"""Request bodies as the engine accepts them: one meaning, no media, no field that vLLM acts on behind the tenant's back.

The gateway rebuilds every body from its own allow-list; this is the second line, for whoever gets past it. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from .errors import BodyRefused

REFUSED_FIELDS: Final = frozenset({
    "chat_template", "data_parallel_rank", "ec_transfer_params", "kv_transfer_params", "media_io_kwargs", "mm_processor_kwargs",
    "multi_modal_uuids", "priority", "prompt_embeds", "request_id", "session_id", "vllm_xargs",
})  # fmt: skip
"""Fields that vLLM declares and that reach another tenant's cache, queue or stored state, or run what a client sends."""
TEXT_PART_FIELDS: Final = frozenset({"type", "text"})


def parse_body(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`.

    Raises:
        BodyRefused: not UTF-8, not a JSON object, a key twice in one object, nested too deeply, or NaN and infinities.
    """
    try:
        body = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise BodyRefused(400, "body_malformed", "the body is not one unambiguous JSON object in UTF-8: send that") from None
    if not isinstance(body, dict):
        raise BodyRefused(400, "body_malformed", "the body is not a JSON object: send one")
    return body


def check_body(body: Mapping[str, Any], declared: frozenset[str]) -> None:
    """Raises:
    BodyRefused: a field that vLLM does not declare for this route, one of REFUSED_FIELDS with a value, or media.
    """
    for name, value in body.items():
        if name not in declared:
            raise BodyRefused(400, "field_refused", "the body has a field that this route does not declare: remove it")
        if name in REFUSED_FIELDS and value is not None:
            raise BodyRefused(400, "field_refused", f"{name} is not accepted by this engine: remove it")
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        _check_message(message)


def _check_message(message: Any) -> None:
    content = message.get("content") if isinstance(message, dict) else None
    for part in content if isinstance(content, list) else ():
        text = isinstance(part, str) or (
            isinstance(part, dict) and part.get("type") == "text" and part.keys() <= TEXT_PART_FIELDS
        )
        if not text:
            raise BodyRefused(400, "media_refused", "messages[].content holds something other than text: send text parts only")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    whole = dict(pairs)
    if len(whole) != len(pairs):
        raise ValueError("a key is given twice")
    return whole


def _no_constant(_name: str) -> NoReturn:
    raise ValueError("not JSON")
