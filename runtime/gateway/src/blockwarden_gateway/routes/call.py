"""What a generation route gives the pipeline: a parsed call, its upstream body, the filter of its answers. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

BEGINNING: Final = 1024
"""Bytes of a prompt's beginning that steer it to the engine which has seen them before."""


@dataclass(frozen=True, slots=True)
class View:
    """How an answer is shown to the client that asked."""

    id: str
    model: str
    expose_cached: bool
    include_usage: bool


@dataclass(frozen=True, slots=True)
class Tally:
    """Tokens of one answer, as the engine counted them."""

    prompt: int
    completion: int
    cached: int

    @property
    def total(self) -> int:
        return self.prompt + self.completion


@dataclass(frozen=True, slots=True)
class Filtered:
    """One answer or event after the filter. `body` is None for an event that the client does not get."""

    body: bytes | None
    tally: Tally | None = None
    content: bool = False


class Call(Protocol):
    """One client's request, parsed and checked."""

    @property
    def model(self) -> str: ...

    @property
    def stream(self) -> bool: ...

    @property
    def include_usage(self) -> bool: ...

    @property
    def beginning(self) -> bytes:
        """At most BEGINNING bytes that requests with a common prefix have in common."""
        ...

    def upstream(self, *, model: str, cache_salt: str) -> bytes:
        """The body for the engine, rebuilt from the route's allow-list."""
        ...


@dataclass(frozen=True, slots=True)
class GenerationRoute:
    """A route that is forwarded to an engine.

    Attributes:
        name: the route in metrics and logs.
        path: the same at the gateway and at the engine.
        prefix: what the ids of its answers begin with.
        parse: a body to a call; raises InvalidRequest.
        filter_reply, filter_event: an engine's bytes to the client's; raise Broken.
    """

    name: str
    path: str
    prefix: str
    parse: Callable[[bytes], Call]
    filter_reply: Callable[[bytes, View], Filtered]
    filter_event: Callable[[bytes, View], Filtered]
