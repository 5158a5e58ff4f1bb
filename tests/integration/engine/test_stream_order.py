"""What only a device can order, on a fake of torch's stream API that finds every missing wait.

Nothing runs here. Each stream and the host has a vector clock; enqueuing, waiting for an event and synchronizing join clocks as
the real calls order work. Every access to a block must be behind the last one that it conflicts with, and what the host believes
must be behind what makes it true; where no chain of waits says so, `MissingWait` is raised, whether or not a real device would
happen to run in that order. The worker class, its steps, the scrubber and the lanes are the real ones; vLLM's own worker beneath
is replaced by one that enqueues a forward pass, and the kernels by their accesses.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from blockwarden_engine import installed, scrubber
from blockwarden_engine.errors import LaunchRefused, ScrubFailed
from blockwarden_engine.guard_worker import ShadowTable
from blockwarden_engine.protocol import ATTRIBUTE, StepOrder
from blockwarden_engine.scrubber import BlockScrubber
from blockwarden_engine.steps import StepKeeper

BLOCKS = 8
SECRET = 7
STREAMS = ("Main", "Side")
Clock = dict[str, int]


class MissingWait(AssertionError):
    """Two things happen in no particular order, and one of them needs the other."""


class Stream:
    """torch.cuda.Stream, as far as lanes use it."""

    def __init__(self, device: Device, name: str) -> None:
        self.device, self.name = device, name
        self.clock: Clock = {name: 0}

    def wait_event(self, event: Event) -> None:
        if self.name != self.device.deaf:
            _join(self.clock, event.clock)


class Event:
    """torch.cuda.Event."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.clock: Clock = {}

    def record(self, stream: Stream | None = None) -> None:
        self.clock = dict((stream or self._device.current).clock)

    def synchronize(self) -> None:
        if self._device.deaf != "host":
            _join(self._device.host, self.clock)


class Device:
    """torch.cuda, and the memory behind it: one number per block.

    Attributes:
        deaf: whose waits do nothing: a stream's name, "host", or nobody's.
        read: what forward passes read.
    """

    type = "fake"

    def __init__(self) -> None:
        self.host: Clock = {}
        self.streams: list[Stream] = []
        self.current = self.Stream()
        self.content: list[int] = [SECRET] * BLOCKS
        self.read: list[int] = []
        self.deaf = ""
        self.asleep = False
        self._accesses: list[list[tuple[str, int, bool]]] = [[] for _ in range(BLOCKS)]

    def Stream(self) -> Stream:
        made = Stream(self, "side" if self.streams else "main")
        self.streams.append(made)
        return made

    def Event(self) -> Event:
        return Event(self)

    def current_stream(self) -> Stream:
        return self.current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def synchronize(self) -> None:
        for stream in self.streams if self.deaf != "host" else ():
            _join(self.host, stream.clock)

    def enqueue(self, blocks: Sequence[int], *, write: bool) -> None:
        """An operation on the current stream that touches blocks."""
        assert not self.asleep, "memory that was given back is touched"
        stream = self.current
        _join(stream.clock, self.host)
        stream.clock[stream.name] += 1
        self._touch(blocks, stream.clock, write=write)
        for block in blocks:
            self._accesses[block].append((stream.name, stream.clock[stream.name], write))

    def look(self, blocks: Sequence[int]) -> list[int]:
        """What the host knows to be in memory."""
        self._touch(blocks, self.host, write=False)
        return [self.content[block] for block in blocks]

    def forward(self, blocks: Sequence[int]) -> None:
        """A forward pass: reads blocks and writes to them."""
        self.read += [self.content[block] for block in blocks]
        self.enqueue(blocks, write=True)
        for block in blocks:
            self.content[block] = SECRET

    def _touch(self, blocks: Sequence[int], clock: Clock, *, write: bool) -> None:
        for block in blocks:
            for stream, time, wrote in self._accesses[block]:
                if (write or wrote) and clock.get(stream, 0) < time:
                    raise MissingWait(f"block {block}: nothing waits for what stream {stream} does with it")


class Memory:
    """The kernels, as accesses."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.idle = False

    def zero(self, ids: Sequence[int]) -> None:
        self._device.enqueue(ids, write=True)
        for block in ids if not self.idle else ():
            self._device.content[block] = 0

    def residue(self, ids: Sequence[int]) -> Callable[[], bool]:
        self._device.enqueue(ids, write=False)
        return lambda: any(self._device.look(ids))

    def wipe(self) -> None:
        self.zero(range(BLOCKS))


def _join(into: Clock, other: Clock) -> None:
    for name, time in other.items():
        into[name] = max(into.get(name, 0), time)


class Rig:
    """A BlockwardenWorker over a fake device, whose runner is asynchronous."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stream: str, verify: str = "Off") -> None:
        monkeypatch.setitem(installed._installed, "worker", "recorded")
        from blockwarden_engine import device as module
        from blockwarden_engine import worker

        self.device = Device()
        monkeypatch.setattr(torch, "get_device_module", lambda _device: self.device)
        self.memory = Memory(self.device)
        self.worker: Any = object.__new__(worker.BlockwardenWorker)
        lane = module.make_lane(torch.device("cpu"), stream)
        self.worker._scrubber = BlockScrubber(self.memory, lane, verify=verify)
        self.worker._keeper = StepKeeper(ShadowTable(BLOCKS, (True,)), self.worker._scrubber, lambda *_: None)
        self.worker._pending, self.worker._warm, self.worker.device = None, True, self.device
        self.worker.parallel_config = SimpleNamespace(world_size=1)
        self._stand_in(monkeypatch, worker)

    def _stand_in(self, monkeypatch: pytest.MonkeyPatch, worker: Any) -> None:
        device = self.device

        class Output(worker._AsyncOutput):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                self._computed = device.Event()
                self._computed.record()

            def get_output(self) -> Any:
                self._computed.synchronize()
                return SimpleNamespace()

        def execute_model(_self: Any, step: Any) -> Any:
            if not step.reads:
                return SimpleNamespace()  # a step without tokens enqueues nothing, and its output waits for nothing
            device.forward(step.reads)
            return None

        def sleep(_self: Any, _level: int) -> None:
            assert device.look(range(BLOCKS)) == [0] * BLOCKS, "tenants' data goes to sleep with the memory"
            device.asleep = True

        def wake_up(_self: Any, tags: Any) -> None:
            if tags is None or "kv_cache" in tags:
                device.asleep, device.content = False, [SECRET] * BLOCKS  # whatever was mapped there before

        monkeypatch.setattr(worker._Base, "execute_model", execute_model)
        monkeypatch.setattr(worker._Base, "sample_tokens", lambda _self, _grammar: Output())
        monkeypatch.setattr(worker._Base, "sleep", sleep)
        monkeypatch.setattr(worker._Base, "wake_up", wake_up)

    def step(self, order: StepOrder, *, new: Any = (), reads: Sequence[int] = ()) -> Any:
        """One step; returns its output, which nobody has fetched yet."""
        output = self.worker.execute_model(SimpleNamespace(
            finished_req_ids=set(), reads=reads,
            scheduled_new_reqs=[SimpleNamespace(req_id=request, block_ids=(ids,)) for request, ids in new],
            scheduled_cached_reqs=SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set()),
            **{ATTRIBUTE: order},
        ))  # fmt: skip
        return self.worker.sample_tokens(None) if output is None else output

    def ack(self, output: Any) -> Any:
        return getattr(output.get_output(), ATTRIBUTE)


Scenario = Callable[[Rig], None]


def recycled_block_is_zero_in_front_of_the_step_that_uses_it(rig: Rig) -> None:
    rig.step(StepOrder(grants={1: [1]}, owners={"a": 1}), new=[("a", [1])], reads=[1])
    rig.device.read.clear()
    rig.step(StepOrder(epoch=1, scrub=[5], zero=[1], grants={1: [1]}, owners={"b": 1}), new=[("b", [1])], reads=[1])
    assert rig.device.read == [0]


def acknowledged_block_is_zero(rig: Rig) -> None:
    output = rig.step(StepOrder(epoch=1, scrub=[3, 4], grants={1: [1]}, owners={"a": 1}), new=[("a", [1])], reads=[1])
    ack = rig.ack(output)
    assert (ack.epoch, ack.scrubbed) == (1, 2)
    assert rig.device.look([3, 4]) == [0, 0]


def step_without_tokens_waits_for_its_zeroes_all_the_same(rig: Rig) -> None:
    assert rig.ack(rig.step(StepOrder(epoch=1, scrub=[5], zero=[6]))).scrubbed == 1
    assert rig.device.look([5, 6]) == [0, 0]


def zeroes_follow_the_step_before_that_still_writes(rig: Rig) -> None:
    rig.step(StepOrder(grants={1: [2]}, owners={"a": 1}), new=[("a", [2])], reads=[2])
    rig.ack(rig.step(StepOrder(epoch=1, scrub=[2])))
    assert rig.device.look([2]) == [0]


def next_step_runs_behind_the_zeroes_acknowledged_or_not(rig: Rig) -> None:
    rig.step(StepOrder(epoch=1, scrub=[2]))
    rig.device.read.clear()
    rig.step(StepOrder(grants={1: [2]}, owners={"a": 1}), new=[("a", [2])], reads=[2])
    assert rig.device.read == [0]


def refused_table_leaves_a_null_block_that_is_zero_again(rig: Rig) -> None:
    rig.step(StepOrder(grants={1: [2]}, owners={"a": 1, "b": 2}), new=[("a", [2]), ("b", [2])], reads=[0, 2])
    rig.device.read.clear()
    rig.step(StepOrder(), reads=[0])
    assert rig.device.read == [0]


def sleep_and_wake_leave_nothing(rig: Rig) -> None:
    rig.step(StepOrder(epoch=1, scrub=[5], grants={1: [1]}, owners={"a": 1}), new=[("a", [1])], reads=[1])
    rig.worker.sleep(1)
    rig.worker.wake_up(["weights"])
    assert rig.device.asleep
    rig.worker.wake_up(["kv_cache"])
    assert rig.device.look(range(BLOCKS)) == [0] * BLOCKS


SCENARIOS: tuple[Scenario, ...] = (
    recycled_block_is_zero_in_front_of_the_step_that_uses_it, acknowledged_block_is_zero,
    step_without_tokens_waits_for_its_zeroes_all_the_same, zeroes_follow_the_step_before_that_still_writes,
    next_step_runs_behind_the_zeroes_acknowledged_or_not, refused_table_leaves_a_null_block_that_is_zero_again,
    sleep_and_wake_leave_nothing,
)  # fmt: skip


@pytest.mark.parametrize("verify", ["Off", "Sampled", "Always"])
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_everything_is_ordered(
    monkeypatch: pytest.MonkeyPatch, vllm_imported: None, scenario: Scenario, stream: str, verify: str
) -> None:
    scenario(Rig(monkeypatch, stream, verify))


def test_zeroes_that_nobody_waits_for_run_beside_the_forward_pass(monkeypatch: pytest.MonkeyPatch, vllm_imported: None) -> None:
    """What mode Side is for, and mode Main is not: the forward pass does not wait for blocks that nobody uses."""
    for stream, waits in (("Main", True), ("Side", False)):
        rig = Rig(monkeypatch, stream)
        rig.step(StepOrder(epoch=1, scrub=[3], grants={1: [1]}, owners={"a": 1}), new=[("a", [1])], reads=[1])
        zeroed = rig.device._accesses[3][-1]
        assert (rig.device.streams[0].clock.get(zeroed[0], 0) >= zeroed[1]) is waits


@pytest.mark.parametrize("stream", STREAMS)
def test_a_block_that_is_read_back_as_not_zero_is_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch, vllm_imported: None, stream: str
) -> None:
    rig = Rig(monkeypatch, stream, "Sampled")
    rig.memory.idle = True
    with pytest.raises(ScrubFailed):
        rig.ack(rig.step(StepOrder(epoch=1, scrub=[7])))


# ---- twins: each of these must fail -------------------------------------------------------------------------------------------


def caught(monkeypatch: pytest.MonkeyPatch, stream: str, spoil: Callable[[Rig], None]) -> set[str]:
    """Names of the scenarios that fail on a spoilt rig."""
    found = set()
    for scenario in SCENARIOS:
        rig = Rig(monkeypatch, stream)
        spoil(rig)
        try:
            scenario(rig)
        except AssertionError:
            found.add(scenario.__name__)
    return found


@pytest.mark.parametrize(
    ("stream", "deaf", "seen_by"),
    [
        ("Side", "side", zeroes_follow_the_step_before_that_still_writes),
        ("Side", "main", next_step_runs_behind_the_zeroes_acknowledged_or_not),
        ("Side", "host", acknowledged_block_is_zero),
        ("Main", "host", acknowledged_block_is_zero),
    ],
)
def test_each_wait_that_is_taken_out_is_caught(
    monkeypatch: pytest.MonkeyPatch, vllm_imported: None, stream: str, deaf: str, seen_by: Scenario
) -> None:
    assert seen_by.__name__ in caught(monkeypatch, stream, lambda rig: setattr(rig.device, "deaf", deaf))


@pytest.mark.parametrize("stream", STREAMS)
def test_a_fence_in_front_of_the_zeroes_is_caught(monkeypatch: pytest.MonkeyPatch, vllm_imported: None, stream: str) -> None:
    def spoil(rig: Rig) -> None:
        lane = rig.worker._scrubber._lane
        order = lane.order

        def early(urgent: Any, idle: Any, launch: Any) -> Any:
            event = rig.device.Event()
            event.record()
            order(urgent, idle, launch)
            return event

        lane.order = early

    assert acknowledged_block_is_zero.__name__ in caught(monkeypatch, stream, spoil)


@pytest.mark.parametrize("stream", STREAMS)
def test_zeroes_behind_the_forward_pass_are_caught(monkeypatch: pytest.MonkeyPatch, vllm_imported: None, stream: str) -> None:
    def spoil(rig: Rig) -> None:
        keeper = rig.worker._keeper
        prepare = keeper.prepare

        def late(step: Any) -> Any:
            rig.device.forward(step.reads)
            step.reads = ()
            return prepare(step)

        keeper.prepare = late

    failed = caught(monkeypatch, stream, spoil)
    assert recycled_block_is_zero_in_front_of_the_step_that_uses_it.__name__ in failed


def test_urgent_zeroes_on_the_side_stream_are_caught(monkeypatch: pytest.MonkeyPatch, vllm_imported: None) -> None:
    def spoil(rig: Rig) -> None:
        scrubs = rig.worker._scrubber
        zero = scrubs.zero
        scrubs.zero = lambda urgent, idle: zero((), [*idle, *urgent])
        rig.worker._keeper._scrubs = scrubs

    assert recycled_block_is_zero_in_front_of_the_step_that_uses_it.__name__ in caught(monkeypatch, "Side", spoil)


def test_sleep_and_wake_without_a_wipe_are_caught(monkeypatch: pytest.MonkeyPatch, vllm_imported: None) -> None:
    failed = caught(monkeypatch, "Main", lambda rig: setattr(rig.worker, "_scrubber", None))
    assert failed == {sleep_and_wake_leave_nothing.__name__}


# ---- the fake, and the settings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("real", "fake", "arguments"),
    [
        (torch.cuda.Stream.wait_event, Stream.wait_event, ("self", "event")),
        (torch.cuda.Event.record, Event.record, ("self", "stream")),
        (torch.cuda.Event.synchronize, Event.synchronize, ("self",)),
        (torch.cuda.current_stream, Device.current_stream, ()),
        (torch.cuda.stream, Device.stream, ("stream",)),
        (torch.cuda.synchronize, Device.synchronize, ()),
    ],
)
def test_the_fake_is_called_as_torch_is(real: Any, fake: Any, arguments: tuple[str, ...]) -> None:
    inspect.signature(real).bind(*arguments)
    inspect.signature(fake).bind(*(() if "self" in arguments else ("self",)), *arguments)


def test_unknown_modes_are_not_taken_for_known_ones(monkeypatch: pytest.MonkeyPatch, vllm_imported: None) -> None:
    with pytest.raises(LaunchRefused, match="Off, Sampled, Always"):
        BlockScrubber(Memory(Device()), scrubber.HostLane(), verify="sampled")
    with pytest.raises(LaunchRefused, match="Main, Side"):
        Rig(monkeypatch, "side")
