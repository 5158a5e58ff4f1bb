"""The keyed queue, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from blockwarden_operator.queue import BACKOFF_LIMIT, Key, KeyQueue, QueueRunner

A: Key = ("ns", "a")
B: Key = ("ns", "b")


def test_many_events_of_one_object_are_one_reconcile() -> None:
    queue = KeyQueue()
    for at in (3.0, 1.0, 2.0):
        queue.add(A, at)
    assert queue.take(1.0) == A
    assert queue.take(10.0) is None


def test_a_key_is_not_taken_before_it_is_due() -> None:
    queue = KeyQueue()
    queue.add(A, 5.0)
    assert queue.take(4.9) is None
    assert queue.next_due() == 5.0
    assert queue.take(5.0) == A


def test_the_longest_due_key_comes_first() -> None:
    queue = KeyQueue()
    queue.add(B, 2.0)
    queue.add(A, 1.0)
    assert [queue.take(3.0), queue.take(3.0)] == [A, B]


def test_an_object_is_never_reconciled_twice_at_once() -> None:
    queue = KeyQueue()
    queue.add(A, 0.0)
    assert queue.take(0.0) == A
    queue.add(A, 0.0)
    assert queue.take(1.0) is None
    queue.done(A, again_at=None)
    assert queue.take(1.0) == A


def test_an_event_during_a_reconcile_beats_a_later_requeue() -> None:
    queue = KeyQueue()
    queue.add(A, 0.0)
    queue.take(0.0)
    queue.add(A, 1.0)
    queue.done(A, again_at=60.0)
    assert queue.next_due() == 1.0


def test_failures_back_off_and_success_forgets_them() -> None:
    queue = KeyQueue()
    delays = []
    for _ in range(12):
        queue.add(A, 0.0)
        queue.take(1e9)
        delays.append(queue.failed(A, 0.0, jitter=0.0))
    assert delays[:4] == [1.0, 2.0, 4.0, 8.0]
    assert delays[-1] == BACKOFF_LIMIT
    queue.take(1e9)
    queue.done(A, again_at=None)
    queue.add(A, 0.0)
    queue.take(0.0)
    assert queue.failed(A, 0.0, jitter=0.0) == 1.0


def test_jitter_spreads_retries_by_at_most_a_quarter() -> None:
    queue = KeyQueue()
    queue.add(A, 0.0)
    queue.take(0.0)
    assert 1.0 <= queue.failed(A, 0.0, jitter=0.999) < 1.25


async def test_the_runner_keeps_other_objects_going_when_one_fails() -> None:
    done: list[Key] = []
    failures: list[tuple[Key, str]] = []
    finished = asyncio.Event()

    async def work(key: Key) -> float | None:
        if key == A:
            raise RuntimeError("broken")
        done.append(key)
        finished.set()
        return None

    loop = asyncio.get_running_loop()
    runner = QueueRunner(work, loop.time, jitter=lambda: 0.0, on_failure=lambda key, error, _: failures.append((key, str(error))))
    task = asyncio.create_task(runner.run())
    runner.add(A)
    runner.add(B)
    await asyncio.wait_for(finished.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [B]
    assert failures == [(A, "broken")]


async def test_the_runner_runs_keys_side_by_side_but_one_key_once() -> None:
    running: set[Key] = set()
    seen_together: list[int] = []
    release = asyncio.Event()
    calls = 0

    async def work(key: Key) -> float | None:
        nonlocal calls
        calls += 1
        assert key not in running
        running.add(key)
        seen_together.append(len(running))
        await release.wait()
        running.discard(key)
        return None

    runner = QueueRunner(work, asyncio.get_running_loop().time, lambda: 0.0, lambda *_: None, workers=2)
    task = asyncio.create_task(runner.run())
    runner.add(A)
    runner.add(B)
    while len(running) < 2:
        await asyncio.sleep(0)
    runner.add(A)
    release.set()
    while calls < 3 or running:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert max(seen_together) == 2


async def test_the_runner_beats_and_comes_back_when_asked() -> None:
    beats = 0
    times: list[float] = []
    loop = asyncio.get_running_loop()

    async def work(_: Key) -> float | None:
        times.append(loop.time())
        return 0.01

    def beat() -> None:
        nonlocal beats
        beats += 1

    runner = QueueRunner(work, loop.time, lambda: 0.0, lambda *_: None, on_beat=beat)
    task = asyncio.create_task(runner.run())
    runner.add(A)
    while len(times) < 3:
        await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert beats >= 3
    assert all(later - earlier >= 0.01 for earlier, later in itertools.pairwise(times))
