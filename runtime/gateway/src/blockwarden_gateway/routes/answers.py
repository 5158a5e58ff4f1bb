"""The answers of both generation routes, rebuilt from what is declared here. Pure.

An engine's answer is decoded into these structs and encoded again, so that a field which a later engine adds (transfer
parameters, load figures, ids) stays behind the gateway until somebody declares it.
"""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from blockwarden_gateway.errors import Broken, Reported

from .call import Filtered, Tally, View

Count = Annotated[int, Meta(ge=0)]


class PromptDetails(Struct, kw_only=True):
    cached_tokens: Count | None = None


class Usage(Struct, kw_only=True):
    prompt_tokens: Count = 0
    completion_tokens: Count | None = 0
    total_tokens: Count = 0
    prompt_tokens_details: PromptDetails | UnsetType | None = UNSET


class Choice(Struct, kw_only=True):
    """What the choices of every route have."""

    index: int
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET


ChoiceT = TypeVar("ChoiceT", bound=Choice)


class Answer(Struct, Generic[ChoiceT], kw_only=True):
    """A whole answer, or one event of a stream. `id` and `model` are the gateway's own."""

    id: str = ""
    object: str
    created: int
    model: str = ""
    choices: list[ChoiceT]
    usage: Usage | UnsetType | None = UNSET


class _Error(Struct):
    code: int | str | None = None


class _Failure(Struct):
    error: _Error


_encode = msgspec.json.Encoder().encode
_failure = msgspec.json.Decoder(_Failure)


def filter_reply(decoder: msgspec.json.Decoder[Answer[ChoiceT]], body: bytes, view: View) -> Filtered:
    """A whole answer.

    Raises:
        Broken: not an answer of this route. Reported: an error.
    """
    answer = _decode(decoder, body)
    tally = _show(answer, view)
    return Filtered(_encode(answer), tally, content=True)


def filter_event(decoder: msgspec.json.Decoder[Answer[ChoiceT]], data: bytes, view: View) -> Filtered:
    """One event. The usage that the gateway asked for on its own account is taken out again.

    Raises:
        Broken: not an event of this route. Reported: an error.
    """
    answer = _decode(decoder, data)
    tally = _show(answer, view)
    if not view.include_usage:
        if not answer.choices:
            return Filtered(None, tally)
        answer.usage = UNSET
    return Filtered(_encode(answer), tally, content=bool(answer.choices))


def _decode(decoder: msgspec.json.Decoder[Answer[ChoiceT]], data: bytes) -> Answer[ChoiceT]:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _what_else(data) from None


def _what_else(data: bytes) -> Broken:
    """What arrived in the place of an answer."""
    try:
        code = str(_failure.decode(data).error.code)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Broken("the engine's answer is unreadable")
    return Reported(int(code) if code.isdecimal() and 400 <= int(code) < 600 else 500, data)


def _show(answer: Answer[ChoiceT], view: View) -> Tally | None:
    answer.id, answer.model = view.id, view.model
    usage = answer.usage
    if not isinstance(usage, Usage):
        return None
    details = usage.prompt_tokens_details
    cached = (details.cached_tokens or 0) if isinstance(details, PromptDetails) else 0
    # An engine leaves the details out when nothing was cached: a client that may see them always does.
    usage.prompt_tokens_details = PromptDetails(cached_tokens=cached) if view.expose_cached else UNSET
    return Tally(usage.prompt_tokens, usage.completion_tokens or 0, cached)
