"""POST /v1/completions: its allow-list, its upstream body, the filter of its answers. Pure."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from blockwarden_gateway.errors import InvalidRequest

from .answers import Answer, Choice, filter_event, filter_reply
from .call import BEGINNING, GenerationRoute
from .sampling import Sampling, SamplingCall, TokenId, check_sampling, check_sequences, decode, encode

Prompt = str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]
"""Text, texts, token ids, or lists of token ids; `parse` refuses mixtures."""


class CompletionFields(Sampling, kw_only=True):
    prompt: Prompt
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    add_special_tokens: bool | None = None


class CompletionUpstream(CompletionFields, kw_only=True):
    cache_salt: str


class CompletionCall(SamplingCall[CompletionFields]):
    """A parsed completion request."""

    __slots__ = ()
    salted = CompletionUpstream

    @property
    def beginning(self) -> bytes:
        return encode(self.fields.prompt[:BEGINNING])[:BEGINNING]


_request: Final = msgspec.json.Decoder(CompletionFields)


def parse(body: bytes) -> CompletionCall:
    """A client's body.

    Raises:
        InvalidRequest: not a completion request, or out of bounds.
    """
    fields = decode(_request, body)
    check_sampling(fields)
    check_sequences(_prompts(fields.prompt), fields.n)
    if fields.echo and fields.logprobs is not None:
        # The engine would compute log-probabilities of the whole prompt, uncached.
        raise InvalidRequest("echo: is not offered together with logprobs: ask for one of them", param="echo")
    return CompletionCall(fields)


def _prompts(prompt: str | list[str | int | list[int]]) -> int:
    """How many prompts there are."""
    if isinstance(prompt, str):
        return 1
    kinds = {type(part) for part in prompt}
    if len(kinds) > 1:
        raise InvalidRequest("prompt: send texts or token ids, not both", param="prompt")
    if not all(part for part in prompt if not isinstance(part, int)):
        raise InvalidRequest("prompt: one of the prompts is empty", param="prompt")
    return 1 if kinds == {int} else len(prompt)


class Logprobs(Struct, kw_only=True):
    text_offset: list[int] = []
    token_logprobs: list[float | None] = []
    tokens: list[str] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class CompletionChoice(Choice, kw_only=True):
    text: str
    logprobs: Logprobs | None = None


_answer: Final = msgspec.json.Decoder(Answer[CompletionChoice])

ROUTE: Final = GenerationRoute(
    name="completions",
    path="/v1/completions",
    prefix="cmpl-",
    parse=parse,
    filter_reply=partial(filter_reply, _answer),
    filter_event=partial(filter_event, _answer),
)
