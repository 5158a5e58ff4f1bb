"""The few headers of a client that mean anything here. Everything else it sends is never looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .errors import InvalidRequest


class Headers:
    """A request's headers as ASGI gives them: lower-case names, bytes, repeats kept."""

    __slots__ = ("_raw",)

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._raw = tuple(raw)

    def all(self, name: bytes) -> Sequence[str]:
        return [value.decode("utf-8", "surrogateescape") for key, value in self._raw if key == name]

    def one(self, name: str) -> str | None:
        """The value of a header, None where it is absent.

        Raises:
            InvalidRequest: sent twice, or not printable UTF-8.
        """
        values = self.all(name.encode())
        if not values:
            return None
        if len(values) > 1:
            raise InvalidRequest(f"header {name} is sent {len(values)} times: send it once", param=name)
        if not values[0].isprintable():
            raise InvalidRequest(f"header {name} holds characters that are not printable UTF-8", param=name)
        return values[0].strip()
