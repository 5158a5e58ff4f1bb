"""The isolation table judges itself: a row that leaks, or that nobody could read, never counts as isolation."""

from __future__ import annotations

import pytest

from stack.isolation import Expected, Row, render_table
from stack.prompts import private_prompt


def row(cached: int | None, *, expected: Expected = Expected.NOTHING, prompt: int | None = 1320) -> Row:
    return Row("isolation", "globex", expected, cached, prompt, 3.41)


@pytest.mark.parametrize("cached", [1, 32, 1312, None])
def test_a_foreign_hit_or_an_unknown_number_does_not_hold(cached: int | None) -> None:
    assert not row(cached).holds


def test_no_hit_holds() -> None:
    assert row(0).holds


@pytest.mark.parametrize(
    ("cached", "holds"), [(0, False), (640, False), (1312, True), (1319, True), (1320, False), (None, False)]
)
def test_an_own_hit_is_about_the_prompt(cached: int | None, holds: bool) -> None:
    assert row(cached, expected=Expected.PROMPT).holds is holds


def test_the_table_says_which_row_is_wrong() -> None:
    table = render_table([row(0), row(1312)])
    assert "yes: 0" in table.splitlines()[1]
    assert "NO: expected 0" in table.splitlines()[2]
    assert "1312 / 1320" in table


def test_prompts_of_two_cases_differ_from_the_first_words() -> None:
    one, other = private_prompt("a1"), private_prompt("b2")
    assert one.split()[1] != other.split()[1]
    assert one.split()[2:] == other.split()[2:]
