"""The fields that both generation routes share, and the checks that a type cannot say. Pure.

A request is decoded into these structs and encoded from them again: what is not declared here does not exist behind the
gateway. Types bound what one request may cost; `None` is the default everywhere and is not sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from blockwarden_gateway.errors import InvalidRequest

MAX_SEQUENCES: Final = 64
"""Sequences that one request may make the engine run: prompts times n."""
MAX_DEPTH: Final = 32
MAX_NODES: Final = 10_000

Tokens = Annotated[int, Meta(ge=1, le=10_000_000)]
TokenId = Annotated[int, Meta(ge=0, le=10_000_000)]
Count = Annotated[int, Meta(ge=1, le=16)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
StopText = Annotated[str, Meta(min_length=1, max_length=256)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Json = dict[str, Any]

T = TypeVar("T")


class Piece(Struct, kw_only=True, omit_defaults=True):
    """A part of a request as it is sent on: absent where the client left it out."""


class StreamOptions(Piece, kw_only=True):
    include_usage: bool | None = None


class JsonSchema(Piece, kw_only=True):
    name: Name
    description: Annotated[str, Meta(max_length=4096)] | None = None
    schema: Json | None = None
    strict: bool | None = None


class ResponseFormat(Piece, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Piece, kw_only=True):
    """Grammars are not offered: what they cost the engine to compile has no bound that a gateway could check."""

    json: Json | None = None
    regex: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    choice: Annotated[list[Name], Meta(min_length=1, max_length=256)] | None = None


class Sampling(Piece, kw_only=True):
    """The fields of both generation routes, without the salt: a client has no way to name one."""

    model: Annotated[str, Meta(min_length=1, max_length=128)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=10_000_000)] | None = None
    n: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=10_000_000)] | None = None
    min_p: Fraction | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    seed: Seed | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=16)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=300)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None


FieldsT = TypeVar("FieldsT", bound=Sampling)


@dataclass(frozen=True, slots=True)
class SamplingCall(Generic[FieldsT]):
    """A parsed request of a generation route; `salted` is the struct of its fields with a `cache_salt`."""

    fields: FieldsT
    salted: ClassVar[type[Sampling]]

    @property
    def model(self) -> str:
        return self.fields.model

    @property
    def stream(self) -> bool:
        return bool(self.fields.stream)

    @property
    def include_usage(self) -> bool:
        return bool(self.fields.stream_options and self.fields.stream_options.include_usage)

    def upstream(self, *, model: str, cache_salt: str) -> bytes:
        """The body for the engine. A stream is always asked for its usage, by which the gateway accounts."""
        fields = {name: getattr(self.fields, name) for name in self.fields.__struct_fields__}
        options = StreamOptions(include_usage=True) if self.stream else None
        return encode(self.salted(**(fields | {"model": model, "stream_options": options, "cache_salt": cache_salt})))


encode: Final = msgspec.json.Encoder().encode


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """A request body as its route's struct.

    Raises:
        InvalidRequest: with the path of the first field that is wrong.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `")
        param = path.removesuffix("`").removeprefix("$").removeprefix(".") or None
        raise InvalidRequest(f"{param or 'body'}: {what}", param=param) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidRequest("the body is not JSON in UTF-8: send one JSON object") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply: send a flatter one") from None


def check_sampling(request: Sampling) -> None:
    """What the types of `Sampling` cannot say.

    Raises:
        InvalidRequest: with the field.
    """
    check_logit_bias(request.logit_bias)
    wanted = request.response_format
    if wanted is not None:
        if (wanted.type == "json_schema") != (wanted.json_schema is not None):
            raise InvalidRequest(
                "response_format: json_schema is needed for type json_schema, and only there", param="response_format"
            )
        if wanted.json_schema is not None:
            check_json(wanted.json_schema.schema, "response_format.json_schema.schema")
    outputs = request.structured_outputs
    if outputs is not None:
        if sum(part is not None for part in (outputs.json, outputs.regex, outputs.choice)) != 1:
            raise InvalidRequest("structured_outputs: name exactly one of json, regex and choice", param="structured_outputs")
        check_json(outputs.json, "structured_outputs.json")


def check_logit_bias(bias: dict[str, float] | None) -> None:
    if bias and not all(key.isascii() and key.isdecimal() and len(key) <= 8 for key in bias):
        raise InvalidRequest("logit_bias: keys are token ids in decimal", param="logit_bias")


def check_json(value: Json | None, param: str) -> None:
    """Bounds a client's free JSON, which the engine compiles to a grammar: its depth and how many values it holds.

    Raises:
        InvalidRequest: too deep or too large.
    """
    level: list[Any] = [value]
    nodes = 0
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in _children(node)]
        nodes += len(level)
        if nodes > MAX_NODES:
            raise InvalidRequest(f"{param}: holds more than {MAX_NODES} values: send a smaller one", param=param)
        if not level:
            return
    raise InvalidRequest(f"{param}: is nested deeper than {MAX_DEPTH}: send a flatter one", param=param)


def _children(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []


def check_sequences(prompts: int, n: int | None) -> None:
    if prompts * (n or 1) > MAX_SEQUENCES:
        raise InvalidRequest(f"n: prompts times n is at most {MAX_SEQUENCES}: send fewer", param="n")
