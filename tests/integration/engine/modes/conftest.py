"""What every mode is held to: afterwards nothing is left in clean blocks on any rank, and no tenant sees another's cache.

The reader runs in the engine core between two steps and looks at the tensors that the attention layers use, on every rank.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

READ = """
def read(worker, ids):
    caches = worker.model_runner.kv_caches
    seen = sum(cache.numel() * cache.element_size() for cache in caches)
    written = [block for block in ids if any(bool(cache[block].any()) for cache in caches)]
    return written, seen == caches[0].untyped_storage().nbytes()
of = lambda *wanted: [block for block, state in enumerate(scheduler.ledger._state) if state in wanted]
clean, owned = of(1), of(2, 3)
ranks = core.model_executor.collective_rpc(read, args=(clean,))
used = core.model_executor.collective_rpc(read, args=(owned,))
result = {"clean": len(clean), "owned": len(owned), "written": [written for written, _ in ranks],
          "whole": all(whole for _, whole in ranks), "used": [len(written) for written, _ in used]}
"""
WIPE = "core.model_executor.collective_rpc(lambda worker: worker._scrubber.wipe())"
NEVER = ("guard_violations", "preemption_vetoes", "foreign_hits_refused", "blocks_repaired")
"""Counters that no mode may move: each of them is a last line of defence that was needed."""


def read(engine: Any) -> Any:
    """The reader's findings; the reader itself has seen the whole buffer."""
    reading = engine.core(READ)
    assert reading["whole"], "the reader does not see all of the memory"
    return reading


def settle(engine: Any) -> Any:
    """The report once nothing runs, waits or is on its way to zero."""

    def settled(report: Any) -> bool:
        busy = sum(tenant.running + tenant.waiting for tenant in report.tenants)
        return not (busy or report.pool.dirty or report.pool.scrubbing)

    return engine.wait_for(settled, 60)


def check_tenants_apart(engine: Any, **fields: Any) -> None:
    """A scope finds its own prompt again, and no other scope does."""
    salt = f"probe{random.getrandbits(32)}"
    prompt = [random.randrange(5, 400) for _ in range(100)]
    token = engine.deployment.token
    own, colleague, other = token("a", user=salt), token("a", user=f"{salt}x"), token("b", user=salt)
    assert [engine.cached(scope, prompt, **fields) for scope in (own, own, colleague, other)] == [0, 96, 0, 0]


@contextmanager
def held_to_isolation(engine: Any) -> Iterator[None]:
    """Around whatever a mode does to an engine."""
    before = Counter(settle(engine).counters)
    yield
    counters = Counter(settle(engine).counters)
    assert [name for name in NEVER if counters[name] != before[name]] == []
    assert counters["blocks_scrubbed"] > before["blocks_scrubbed"], "nothing was scrubbed"
    reading = read(engine)
    assert reading["written"] == [[] for _ in reading["written"]]
    assert reading["clean"]
    check_tenants_apart(engine)


@contextmanager
def caught_by_the_reader(engine: Any) -> Iterator[None]:
    """As above around the broken twin, which zeroes nothing: what the mode leaves behind is found."""
    settle(engine)
    engine.core(WIPE)
    yield
    settle(engine)
    assert any(read(engine)["written"]), "the twin left nothing behind, so this test could not fail"


@pytest.fixture
def subject(kind: str, request: pytest.FixtureRequest) -> Any:
    """The engine of a test that runs on several kinds."""
    return request.getfixturevalue(kind)


@pytest.fixture
def held(kind: str) -> Callable[[Any], AbstractContextManager[None]]:
    """Holds an engine to isolation, and the broken twin to being caught."""
    return caught_by_the_reader if kind == "twin_engine" else held_to_isolation


@pytest.fixture
def isolated() -> Callable[[Any], AbstractContextManager[None]]:
    """Holds an engine to isolation."""
    return held_to_isolation


@pytest.fixture
def reader() -> Callable[[Any], Any]:
    """Reads the memory of every rank."""
    return read


@pytest.fixture
def tenants_apart() -> Callable[..., None]:
    """Fails unless a scope finds its own prompt again, and no other scope does."""
    return check_tenants_apart


@pytest.fixture
def at_once() -> Iterator[Callable[..., list[Any]]]:
    """Starts completions of several tenants at once: (tenant, prompt length, answer length) each; futures of their answers."""
    with ThreadPoolExecutor(16) as pool:

        def start(engine: Any, *wanted: tuple[str, int, int], **fields: Any) -> list[Any]:
            def complete(tenant: str, prompt: int, tokens: int) -> Any:
                ids = [random.randrange(5, 400) for _ in range(prompt)]
                salt = engine.deployment.token(tenant, user=str(random.getrandbits(32)))
                return engine.complete(salt, ids, max_tokens=tokens, **fields)

            return [pool.submit(complete, *one) for one in wanted]

        yield start
