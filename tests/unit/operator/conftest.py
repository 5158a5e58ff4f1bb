"""Shared values of the operator's unit tests: an owner, a clock that stands still and randomness that can be repeated."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from blockwarden_operator.render.names import Owner


class Stream:
    """Deterministic bytes that never repeat within one stream."""

    def __init__(self, seed: str) -> None:
        self.seed, self.drawn = seed, 0

    def __call__(self, count: int) -> bytes:
        self.drawn += 1
        return hashlib.shake_256(f"{self.seed}/{self.drawn}".encode()).digest(count)


@pytest.fixture
def entropy() -> Stream:
    return Stream("unit")


@pytest.fixture
def make_entropy() -> Callable[[str], Stream]:
    return Stream


@pytest.fixture
def owner() -> Owner:
    return Owner("shared-llama", "inference", "8b9f5a52-0000-4000-8000-000000000001")


@pytest.fixture
def now() -> datetime:
    return datetime(2026, 11, 1, 12, 0, 0, tzinfo=UTC)
