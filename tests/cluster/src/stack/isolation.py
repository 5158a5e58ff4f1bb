"""The isolation table: who asked the same long private prompt, what was cached for them, how long the first token took.

Pure: rows in, text and verdicts out. The demo prints it and the end-to-end tests judge by the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

BLOCK: Final = 128
"""Cached tokens come in whole blocks: a full hit may miss up to the largest block size that the demo uses, and the last token."""


class Expected(Enum):
    """What a row must show."""

    NOTHING = "0"
    PROMPT = "about the prompt's length"


@dataclass(frozen=True)
class Row:
    """One request of the prompt."""

    phase: str
    who: str
    expected: Expected
    cached_tokens: int | None
    prompt_tokens: int | None
    first_token: float | None

    @property
    def holds(self) -> bool:
        """Whether the cached tokens are as expected; unknown numbers never hold."""
        if self.cached_tokens is None or self.prompt_tokens is None:
            return False
        if self.expected is Expected.NOTHING:
            return self.cached_tokens == 0
        return self.prompt_tokens - BLOCK - 1 <= self.cached_tokens < self.prompt_tokens


def render_table(rows: Iterable[Row]) -> str:
    """The rows as aligned text, each with its verdict."""
    lines = [f"{'phase':<26} {'who':<18} {'cached / prompt tokens':>22} {'first token':>12}  as it must be"]
    for row in rows:
        tokens = f"{_or_dash(row.cached_tokens)} / {_or_dash(row.prompt_tokens)}"
        first = f"{row.first_token:.2f} s" if row.first_token is not None else "-"
        verdict = f"yes: {row.expected.value}" if row.holds else f"NO: expected {row.expected.value}"
        lines.append(f"{row.phase:<26} {row.who:<18} {tokens:>22} {first:>12}  {verdict}")
    return "\n".join(lines)


def _or_dash(number: int | None) -> str:
    return "-" if number is None else f"{number}"
