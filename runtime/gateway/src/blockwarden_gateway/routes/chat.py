"""POST /v1/chat/completions: its allow-list, its upstream body, the filter of its answers. Pure.

Media is refused: vLLM's media caches are keyed by content or by a client's `uuid`, without any salt.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from blockwarden_gateway.errors import InvalidRequest, MediaRefused

from .answers import Answer, Choice, filter_event, filter_reply
from .call import BEGINNING, GenerationRoute
from .sampling import (
    Json,
    Name,
    Piece,
    Sampling,
    SamplingCall,
    Tokens,
    check_json,
    check_sampling,
    check_sequences,
    decode,
    encode,
)


class Part(Piece, kw_only=True):
    """A content part; only text has one."""

    type: Annotated[str, Meta(max_length=64)]
    text: str | None = None


class CalledFunction(Piece, kw_only=True):
    name: Name
    arguments: str


class ToolCall(Piece, kw_only=True):
    id: Name
    type: Literal["function"]
    function: CalledFunction


class Message(Piece, kw_only=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=128)] | None = None
    tool_call_id: Name | None = None


class Function(Piece, kw_only=True):
    name: Name
    description: Annotated[str, Meta(max_length=65_536)] | None = None
    parameters: Json | None = None
    strict: bool | None = None


class Tool(Piece, kw_only=True):
    type: Literal["function"]
    function: Function


class NamedFunction(Piece, kw_only=True):
    name: Name


class NamedTool(Piece, kw_only=True):
    type: Literal["function"]
    function: NamedFunction


class TemplateOptions(Piece, kw_only=True):
    """The switches of chat templates that say how to answer. Other keys could rewrite the prompt and are dropped."""

    enable_thinking: bool | None = None
    thinking: bool | None = None


class ChatFields(Sampling, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1, max_length=4096)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: TemplateOptions | None = None


class ChatUpstream(ChatFields, kw_only=True):
    cache_salt: str


class ChatCall(SamplingCall[ChatFields]):
    """A parsed chat request."""

    __slots__ = ()
    salted = ChatUpstream

    @property
    def beginning(self) -> bytes:
        return encode(self.fields.messages[:2])[:BEGINNING]


_request: Final = msgspec.json.Decoder(ChatFields)


def parse(body: bytes) -> ChatCall:
    """A client's body.

    Raises:
        InvalidRequest: not a chat request, or out of bounds. MediaRefused: it holds something else than text.
    """
    fields = decode(_request, body)
    for number, message in enumerate(fields.messages):
        _check_message(message, f"messages[{number}]")
    for number, tool in enumerate(fields.tools or ()):
        check_json(tool.function.parameters, f"tools[{number}].function.parameters")
    if fields.top_logprobs and not fields.logprobs:
        raise InvalidRequest("top_logprobs: needs logprobs to be true", param="top_logprobs")
    check_sampling(fields)
    check_sequences(1, fields.n)
    return ChatCall(fields)


def _check_message(message: Message, path: str) -> None:
    if message.content is None and not (message.role == "assistant" and message.tool_calls):
        raise InvalidRequest(f"{path}.content: is missing: send text", param=f"{path}.content")
    if message.tool_calls and message.role != "assistant":
        raise InvalidRequest(f"{path}.tool_calls: only the assistant calls tools", param=f"{path}.tool_calls")
    if (message.role == "tool") != (message.tool_call_id is not None):
        raise InvalidRequest(f"{path}.tool_call_id: is needed for role tool, and only there", param=f"{path}.tool_call_id")
    if isinstance(message.content, list):
        for number, part in enumerate(message.content):
            _check_part(part, f"{path}.content[{number}]")


def _check_part(part: Part, path: str) -> None:
    if part.type != "text":
        raise MediaRefused(f"{path}: content of this type is refused here: send parts of type text only", param=path)
    if part.text is None:
        raise InvalidRequest(f"{path}.text: is missing", param=f"{path}.text")


class TopLogprob(Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenLogprob(TopLogprob, kw_only=True):
    top_logprobs: list[TopLogprob] = []


class Logprobs(Struct, kw_only=True):
    content: list[TokenLogprob] | None = None


class FunctionSaid(Struct, kw_only=True):
    name: str | UnsetType | None = UNSET
    arguments: str | UnsetType | None = UNSET


class ToolCallSaid(Struct, kw_only=True):
    index: int | UnsetType = UNSET
    id: str | UnsetType | None = UNSET
    type: str | UnsetType | None = UNSET
    function: FunctionSaid | UnsetType = UNSET


class Said(Struct, kw_only=True):
    """An assistant's message, or the next piece of one."""

    role: str | UnsetType | None = UNSET
    content: str | UnsetType | None = UNSET
    refusal: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    tool_calls: list[ToolCallSaid] | UnsetType | None = UNSET


class ChatChoice(Choice, kw_only=True):
    message: Said
    logprobs: Logprobs | None = None


class ChatDelta(Choice, kw_only=True):
    delta: Said
    logprobs: Logprobs | None = None


ROUTE: Final = GenerationRoute(
    name="chat_completions",
    path="/v1/chat/completions",
    prefix="chatcmpl-",
    parse=parse,
    filter_reply=partial(filter_reply, msgspec.json.Decoder(Answer[ChatChoice])),
    filter_event=partial(filter_event, msgspec.json.Decoder(Answer[ChatDelta])),
)
