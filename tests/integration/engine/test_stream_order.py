"""What only a device can order, on a fake device that is as lazy as it may be.

A device runs what was enqueued on a stream in its order, and the host sees nothing of it before it waits. The fake does exactly
that: an operation runs only when somebody waits for an event behind it, and a wait that is missing shows as an acknowledgement of
memory that is not zero, or as a forward pass that reads what another owner left. The worker class, its steps and the scrubber
are the real ones; vLLM's own worker beneath is replaced by one that enqueues a forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from blockwarden_engine import installed, scrubber
from blockwarden_engine.errors import LaunchRefused, ScrubFailed
from blockwarden_engine.guard_worker import ShadowTable
from blockwarden_engine.protocol import ATTRIBUTE, StepOrder
from blockwarden_engine.scrubber import BlockScrubber
from blockwarden_engine.steps import Pending, StepKeeper

BLOCKS = 8
SECRET = 7


class Device:
    """One stream, and memory of one number per block. Nothing runs before a wait."""

    type = "fake"

    def __init__(self) -> None:
        self.memory = [SECRET] * BLOCKS
        self.queue: list[Callable[[], None]] = []
        self.read: list[int] = []

    def enqueue(self, operation: Callable[[], None]) -> None:
        self.queue.append(operation)

    def run_until(self, mark: int) -> None:
        for operation in self.queue[:mark]:
            operation()
        self.queue = [lambda: None] * mark + self.queue[mark:]

    def fence(self) -> Any:
        """An event behind everything enqueued so far."""
        mark = len(self.queue)
        return SimpleNamespace(synchronize=lambda: self.run_until(mark))

    def forward(self, reads: Sequence[int]) -> None:
        """Enqueues a forward pass that reads blocks and then writes to them."""

        def operation() -> None:
            self.read += [self.memory[block] for block in reads]
            for block in reads:
                self.memory[block] = SECRET

        self.enqueue(operation)


class Tensor:
    """A view of the device's memory, as far as a scrubber uses one."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def index_fill_(self, _dimension: int, index: list[int], value: int) -> None:
        def fill() -> None:
            for block in index:
                self.device.memory[block] = value

        self.device.enqueue(fill)

    def index_select(self, _dimension: int, index: list[int]) -> Any:
        found = Lazy(self.device)
        self.device.enqueue(lambda: found.set(any(self.device.memory[block] for block in index)))
        return SimpleNamespace(any=lambda: found)


class Lazy:
    """A number on the device: reading it waits for everything enqueued so far, as `bool(tensor)` does."""

    def __init__(self, device: Device) -> None:
        self._device, self._value = device, False

    def set(self, value: bool) -> None:
        self._value = value

    def any(self) -> Lazy:
        return self

    def __bool__(self) -> bool:
        self._device.run_until(len(self._device.queue))
        return self._value


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, vllm_imported: None) -> Device:
    fake = SimpleNamespace(tensor=lambda ids, **_: _Index(ids), int64=torch.int64, stack=lambda found: found[0])
    monkeypatch.setattr(scrubber, "torch", fake)
    return Device()


class _Index(list[int]):
    def to(self, *_args: Any, **_kwargs: Any) -> _Index:
        return self


def make_worker(device: Device, monkeypatch: pytest.MonkeyPatch, *, verify: str = "Off") -> Any:
    """A BlockwardenWorker whose base enqueues forward passes on the fake device and answers like an asynchronous runner."""
    monkeypatch.setitem(installed._installed, "worker", "recorded")
    from blockwarden_engine import worker as module

    class Output(module._AsyncOutput):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self._computed = device.fence()

        def get_output(self) -> Any:
            self._computed.synchronize()
            return SimpleNamespace()

    def execute_model(_self: Any, step: Any) -> Any:
        if not step.reads:
            return SimpleNamespace()  # a step without tokens enqueues nothing, and its output waits for nothing
        device.forward(step.reads)
        return None

    monkeypatch.setattr(module._Base, "execute_model", execute_model)
    monkeypatch.setattr(module._Base, "sample_tokens", lambda _self, _grammar: Output())
    worker: Any = object.__new__(module.BlockwardenWorker)
    tensor: Any = Tensor(device)
    worker._scrubber = BlockScrubber(tensor, [tensor], verify=verify, fence=lambda _device: device.fence())
    worker._keeper = StepKeeper(ShadowTable(BLOCKS, (True,)), worker._scrubber, lambda *_: None)
    worker._pending, worker._warm, worker.device = None, True, device
    worker.parallel_config = SimpleNamespace(world_size=1)
    return worker


def step(order: StepOrder, *, new: Sequence[tuple[str, list[int]]] = (), reads: Sequence[int] = ()) -> Any:
    cached = SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set())
    requests = [SimpleNamespace(req_id=name, block_ids=(ids,)) for name, ids in new]
    made = SimpleNamespace(finished_req_ids=set(), scheduled_new_reqs=requests, scheduled_cached_reqs=cached, reads=reads)
    setattr(made, ATTRIBUTE, order)
    return made


def run(worker: Any, sent: Any) -> Any:
    """Everything that the worker's main thread does for a step; the output is fetched later, on another."""
    output = worker.execute_model(sent)
    return worker.sample_tokens(None) if output is None else output


def test_a_forward_pass_reads_zeroes_where_blocks_were_recycled(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make_worker(device, monkeypatch)
    run(worker, step(StepOrder(grants={1: [1]}, owners={"a": 1}), new=[("a", [1])], reads=[1])).get_output()
    device.read.clear()
    run(worker, step(StepOrder(zero=[1], grants={1: [1]}, owners={"b": 1}), new=[("b", [1])], reads=[1])).get_output()
    assert device.read == [0]


def test_an_acknowledgement_means_that_the_memory_is_zero(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make_worker(device, monkeypatch)
    output = run(worker, step(StepOrder(epoch=1, scrub=[3, 4], grants={1: [1]}, owners={"a": 1}), new=[("a", [1])], reads=[1]))
    assert device.memory[3] == SECRET, "the fake ran ahead of the host"
    acknowledged = getattr(output.get_output(), ATTRIBUTE)
    assert (acknowledged.epoch, acknowledged.scrubbed) == (1, 2)
    assert device.memory[3] == device.memory[4] == 0


def test_a_step_without_tokens_waits_for_its_zeroes_all_the_same(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    output = run(make_worker(device, monkeypatch), step(StepOrder(epoch=1, scrub=[5])))
    assert device.memory[5] == SECRET
    assert getattr(output.get_output(), ATTRIBUTE).scrubbed == 1
    assert device.memory[5] == 0


def test_zeroes_follow_the_step_before_that_still_writes(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make_worker(device, monkeypatch)
    first = run(worker, step(StepOrder(grants={1: [2]}, owners={"a": 1}), new=[("a", [2])], reads=[2]))
    second = run(worker, step(StepOrder(epoch=1, scrub=[2])))
    second.get_output()
    assert device.memory[2] == 0, "the first step's write came after the zeroes"
    first.get_output()
    assert device.memory[2] == 0


def test_what_is_read_back_is_read_behind_the_zeroes(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make_worker(device, monkeypatch, verify="Always")
    assert getattr(run(worker, step(StepOrder(epoch=1, scrub=[6]))).get_output(), ATTRIBUTE).scrubbed == 1
    monkeypatch.setattr(BlockScrubber, "_zero", lambda self, ids: None)
    with pytest.raises(ScrubFailed):
        run(worker, step(StepOrder(epoch=2, scrub=[7]))).get_output()


def test_an_unknown_read_back_mode_is_not_taken_for_off(device: Device) -> None:
    tensor: Any = Tensor(device)
    with pytest.raises(LaunchRefused, match="Off, Sampled, Always"):
        BlockScrubber(tensor, [tensor], verify="sampled")


def without_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(self: Pending, output: Any) -> Any:
        setattr(output, ATTRIBUTE, self.ack)
        return output

    monkeypatch.setattr(Pending, "settle", settle)


def fence_first(monkeypatch: pytest.MonkeyPatch) -> None:
    zero = BlockScrubber._zero

    def early(self: BlockScrubber, ids: Sequence[int]) -> Any:
        fence = self._fence(self._raw.device)
        zero(self, ids)
        return scrubber.Scrub(fence, None)

    monkeypatch.setattr(BlockScrubber, "zero", early)


@pytest.mark.parametrize("twin", [without_wait, fence_first])
def test_twins_that_miss_a_wait_are_caught(
    device: Device, monkeypatch: pytest.MonkeyPatch, twin: Callable[[pytest.MonkeyPatch], None]
) -> None:
    worker = make_worker(device, monkeypatch)
    twin(monkeypatch)
    acknowledged = getattr(run(worker, step(StepOrder(epoch=1, scrub=[5]))).get_output(), ATTRIBUTE)
    assert acknowledged.scrubbed == 1
    assert device.memory[5] == SECRET, "the twin's acknowledgement came with the zeroes in place: the fake cannot catch it"


def test_a_twin_that_zeroes_behind_the_forward_pass_is_caught(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make_worker(device, monkeypatch)
    run(worker, step(StepOrder(grants={1: [1]}, owners={"a": 1}), new=[("a", [1])], reads=[1])).get_output()
    device.read.clear()
    late = step(StepOrder(zero=[1], grants={1: [1]}, owners={"b": 1}), new=[("b", [1])], reads=[1])
    device.forward([1])
    worker._keeper.prepare(late)
    device.run_until(len(device.queue))
    assert device.read == [SECRET]
