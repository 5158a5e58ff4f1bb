"""Limits of one tenant over a sliding minute, with a clock that the test moves."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from blockwarden_core.policy import Limits
from blockwarden_gateway.errors import LimitReached
from blockwarden_gateway.limits import Limiter


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limiter(clock: Clock) -> Limiter:
    return Limiter(clock)


def refused(limiter: Limiter, limits: Limits, tenant: str = "acme") -> LimitReached:
    with pytest.raises(LimitReached) as error, limiter.admitted(tenant, limits):
        pass
    return error.value


def test_concurrency_is_given_back_when_a_request_ends(limiter):
    limits = Limits(concurrent_requests=2)
    with ExitStack() as stack:
        stack.enter_context(limiter.admitted("acme", limits))
        stack.enter_context(limiter.admitted("acme", limits))
        assert refused(limiter, limits).retry_after == 1
        with limiter.admitted("globex", limits):
            pass
    with limiter.admitted("acme", limits):
        pass


def test_a_minutes_requests_are_counted_over_a_sliding_minute(limiter, clock):
    limits = Limits(requests_per_minute=2)
    for moment in (0.0, 20.0):
        clock.now = 1000 + moment
        with limiter.admitted("acme", limits):
            pass
    clock.now = 1030
    assert refused(limiter, limits).retry_after == 30
    clock.now = 1060.5
    with limiter.admitted("acme", limits):
        pass
    assert refused(limiter, limits).retry_after == 20


def test_tokens_are_paid_afterwards_and_in_full(limiter, clock):
    limits = Limits(tokens_per_minute=100)
    with limiter.admitted("acme", limits):
        limiter.spend("acme", 250)
    error = refused(limiter, limits)
    assert (error.retry_after, error.status) == (60, 429)
    assert "100 tokens per minute" in error.message
    clock.now += 60
    with limiter.admitted("acme", limits):
        pass


def test_the_wait_ends_when_enough_has_left_the_minute(limiter, clock):
    limits = Limits(tokens_per_minute=100)
    for amount in (60, 60, 30):
        limiter.spend("acme", amount)
        clock.now += 10
    assert refused(limiter, limits).retry_after == 30
    clock.now += 30
    with limiter.admitted("acme", limits):
        pass


def test_no_limit_is_no_limit(limiter):
    for _ in range(1000):
        with limiter.admitted("acme", Limits()):
            limiter.spend("acme", 10**6)


def test_a_tenant_that_left_and_came_back_starts_anew(limiter):
    limits = Limits(requests_per_minute=1)
    with limiter.admitted("acme", limits):
        limiter.keep(frozenset({"globex"}))
        assert refused(limiter, limits).status == 429
    limiter.keep(frozenset({"globex"}))
    with limiter.admitted("acme", limits):
        pass
