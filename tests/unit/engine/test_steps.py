"""One step of a worker: zeroes first, then checks, then the forward pass, and an acknowledgement only behind confirmed zeroes."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from blockwarden_engine.errors import MissingAck, ScrubFailed
from blockwarden_engine.guard_worker import ShadowTable
from blockwarden_engine.protocol import ATTRIBUTE, StepAck, StepOrder
from blockwarden_engine.steps import Pending, StepKeeper


class Recorder:
    """Stands for a scrubber and its fence; writes down what happened in which order."""

    def __init__(self, failing: bool = False) -> None:
        self.events: list[Any] = []
        self._failing = failing

    def zero(self, urgent: Sequence[int], idle: Sequence[int]) -> Recorder:
        self.events.append(("zero", list(urgent), list(idle)))
        return self

    def confirm(self) -> None:
        self.events.append("confirm")
        if self._failing:
            raise ScrubFailed("not zero")


def step(order: StepOrder | None, *, new: Any = (), cached: Any = (), resumed: Any = (), finished: Any = ()) -> Any:
    """A SchedulerOutput as far as a worker's step looks at it."""
    made = SimpleNamespace(
        finished_req_ids=set(finished),
        scheduled_new_reqs=[SimpleNamespace(req_id=request, block_ids=table) for request, table in new],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[request for request, _ in cached], new_block_ids=[ids for _, ids in cached], resumed_req_ids=set(resumed)
        ),
    )
    if order is not None:
        setattr(made, ATTRIBUTE, order)
    return made


def keeper(recorder: Recorder) -> StepKeeper:
    return StepKeeper(ShadowTable(8, (True,)), recorder, lambda request, table: recorder.events.append(("void", request, table)))


def test_a_step_without_an_order_ends_the_engine() -> None:
    with pytest.raises(MissingAck):
        keeper(Recorder()).prepare(step(None))


def test_the_acknowledgement_comes_behind_the_confirmation() -> None:
    recorder = Recorder()
    pending = keeper(recorder).prepare(step(StepOrder(epoch=3, scrub=[4, 5], zero=[1])))
    assert recorder.events == [("zero", [1], [4, 5])]
    shared = SimpleNamespace()
    settled = pending.settle(shared)
    assert recorder.events[-1] == "confirm"
    assert getattr(settled, ATTRIBUTE) == StepAck(epoch=3, scrubbed=2)
    assert not hasattr(shared, ATTRIBUTE), "vLLM's shared empty output must not be written to"


def test_nothing_is_acknowledged_when_the_zeroes_are_not_confirmed() -> None:
    pending = keeper(Recorder(failing=True)).prepare(step(StepOrder(epoch=1, scrub=[4])))
    with pytest.raises(ScrubFailed):
        pending.settle(SimpleNamespace())


def test_a_twin_that_acknowledges_without_confirming_would_be_seen() -> None:
    recorder = Recorder(failing=True)
    pending = keeper(recorder).prepare(step(StepOrder(epoch=1, scrub=[4])))
    Pending(pending.ack, SimpleNamespace(confirm=lambda: None)).settle(SimpleNamespace())  # the twin: nothing is behind it
    assert "confirm" not in recorder.events


def test_refused_tables_are_replaced_before_the_runner_sees_them() -> None:
    recorder = Recorder()
    kept = keeper(recorder)
    kept.prepare(step(StepOrder(grants={1: [1], 2: [2]}, owners={"a": 1, "b": 2}), new=[("a", ([1],)), ("b", ([2],))]))
    corrupt = step(StepOrder(grants={1: [3], 2: [4]}), cached=[("a", ([3],)), ("b", ([4, 3],))])
    pending = kept.prepare(corrupt)
    assert corrupt.scheduled_cached_reqs.new_block_ids == [([3],), ([4, 0],)]
    assert pending.ack.violations == [("b", 3)]


def test_a_request_that_lost_a_block_runs_on_with_null_blocks_only() -> None:
    recorder = Recorder()
    kept = keeper(recorder)
    kept.prepare(step(StepOrder(grants={1: [1, 2]}, owners={"a": 1}), new=[("a", ([1, 2],))]))
    pending = kept.prepare(step(StepOrder(epoch=1, scrub=[2]), cached=[("a", None)]))
    assert pending.ack.violations == [("a", 2)]
    assert recorder.events[-1] == ("void", "a", ([0, 0],))


def test_a_resumed_request_sends_its_table_whole() -> None:
    kept = keeper(Recorder())
    kept.prepare(step(StepOrder(grants={1: [1]}, owners={"a": 1}), new=[("a", ([1],))]))
    pending = kept.prepare(step(StepOrder(epoch=1, scrub=[1], grants={1: [5]}), cached=[("a", ([5],))], resumed=["a"]))
    assert pending.ack.violations == []
