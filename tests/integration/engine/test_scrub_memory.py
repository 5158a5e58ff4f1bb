"""A reader of the raw KV memory, in a running engine under mixed load of three tenants: every clean block is zero.

The reader runs in the engine core between two steps. What the scheduler calls clean at that moment is granted in no step that
is on its way to the worker, and the reader's call queues behind those steps, so the list and the memory belong together. It
reads the tensors that the attention layers use, not the scrubber's views of them.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

READ = """
def read(worker, ids):
    caches = worker.model_runner.kv_caches
    storage = caches[0].untyped_storage()
    seen = sum(cache.numel() * cache.element_size() for cache in caches)
    written = [block for block in ids if any(bool(cache[block].any()) for cache in caches)]
    return written, seen == storage.nbytes()
states = scheduler.ledger._state
clean = [block for block, state in enumerate(states) if state == 1]
owned = [block for block, state in enumerate(states) if state in (2, 3)]
(written, whole), = core.model_executor.collective_rpc(read, args=(clean,))
(used, _), = core.model_executor.collective_rpc(read, args=(owned,))
result = {"clean": len(clean), "written": written, "whole": whole, "used": len(used), "running": len(scheduler.running)}
"""
BREAK = "def verify(worker): worker._scrubber._verify = 'Always'\ncore.model_executor.collective_rpc(verify)"


@contextmanager
def mixed_load(engine: Any, threads: int = 9) -> Iterator[None]:
    """Three tenants, several users each, prompts of one to ten blocks: hits, evictions, recycling and changes of owner."""
    stop = threading.Event()

    def drive(seed: int) -> int:
        chance, served = random.Random(seed), 0
        while not stop.is_set():
            tenant, user = "abc"[seed % 3], str(chance.randrange(4))
            prompt = [5 + seed % 3] * chance.randrange(20, 90) + [
                chance.randrange(5, 400) for _ in range(chance.randrange(1, 230))
            ]
            answer = engine.complete(engine.deployment.token(tenant, user=user), prompt, max_tokens=chance.randrange(1, 40))
            assert answer.status == 200, answer.body
            served += 1
        return served

    with ThreadPoolExecutor(threads) as pool:
        drivers = [pool.submit(drive, seed) for seed in range(threads)]
        try:
            yield
        finally:
            stop.set()
        assert sum(driver.result() for driver in drivers) >= threads


def read_under_load(engine: Any, reads: int) -> list[dict[str, Any]]:
    with mixed_load(engine):
        before = engine.report().counters.get("blocks_scrubbed", 0)
        engine.wait_for(lambda report: report.counters.get("blocks_scrubbed", 0) > before + 50, 90)
        return [engine.core(READ) for _ in range(reads)]


@pytest.mark.parametrize("kind", ["engine", "sync_engine"])
def test_every_clean_block_is_zero_under_mixed_load(kind: str, request: pytest.FixtureRequest) -> None:
    engine = request.getfixturevalue(kind)
    before = Counter(engine.report().counters)  # other tests ran on this engine, and corrupted its tables
    readings = read_under_load(engine, 40)
    assert all(reading["whole"] for reading in readings), "the reader does not see all of the memory"
    assert [reading["written"] for reading in readings] == [[]] * len(readings)
    assert any(reading["running"] and reading["used"] for reading in readings), "nothing was going on while reading"
    assert sum(reading["clean"] for reading in readings) > 0
    counters = Counter(engine.report().counters)
    assert counters["blocks_scrubbed"] > before["blocks_scrubbed"] + 50
    assert counters["guard_violations"] == before["guard_violations"]
    assert counters["preemption_vetoes"] == before["preemption_vetoes"]


def test_a_scrubber_that_zeroes_nothing_is_caught_by_the_reader(twin_engine: Any) -> None:
    readings = read_under_load(twin_engine, 40)
    assert any(reading["written"] for reading in readings)


def test_a_scrub_that_is_read_back_as_not_zero_ends_the_engine(twin_engine: Any, engines: Any) -> None:
    twin_engine.core(BREAK)
    prompt = [random.randrange(5, 400) for _ in range(200)]
    for user in range(12):
        try:
            twin_engine.complete(twin_engine.deployment.token("a", user=f"x{user}"), prompt, max_tokens=20)
        except OSError:
            break
    assert twin_engine.wait_ended(60) is not None
    assert "read back and is not zero" in twin_engine.tail(20_000)
    engines.stop()
