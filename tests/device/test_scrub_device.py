"""The scrubber on a real accelerator, in both modes: its zeroes in front of later kernels, its acknowledgement behind them, CUDA
graphs included; the layouts' kernels; the bandwidth beside a plain fill.

Run it where there is one: `$(python tools/engine_env.py) -m pytest tests/device` in an environment with vLLM for that device.
"""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch

from blockwarden_engine.errors import ScrubFailed
from blockwarden_engine.footprint import Extent
from blockwarden_engine.scrubber import BlockScrubber

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator on this machine"),
]
BLOCKS, SIZE = 4096, 65536
MARK = 0x5A


@pytest.fixture
def memory() -> Any:
    """A pool of BLOCKS blocks, all of it written."""
    return torch.full((BLOCKS * SIZE,), MARK, dtype=torch.int8, device="cuda")


@pytest.fixture(params=["Main", "Side"])
def stream(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def scrubber_of(memory: Any, stream: str, verify: str = "Off", extents: tuple[Extent, ...] = ()) -> BlockScrubber:
    from blockwarden_engine.device import DeviceMemory, make_lane

    pages = extents or (Extent(0, SIZE, SIZE),)
    return BlockScrubber(DeviceMemory(memory, pages), make_lane(memory.device, stream), verify=verify)


def keep_busy(rounds: int = 20) -> None:
    """Work for the current stream, long after the host has gone on."""
    burn = torch.randn(8192, 8192, device="cuda")
    for _ in range(rounds):
        burn = burn @ burn / 90


def test_confirmed_blocks_are_zero_and_their_neighbours_untouched(memory: Any, stream: str) -> None:
    ids = list(range(0, BLOCKS, 3))
    scrubber_of(memory, stream, "Always").zero(ids[:7], ids[7:]).confirm()
    rows = memory.view(BLOCKS, -1)
    assert not rows[ids].any()
    assert bool((rows[1::3] == MARK).all())


def test_a_block_in_pieces_is_zeroed_in_one_launch(memory: Any, stream: str) -> None:
    layers, page = 32, 2048
    extents = tuple(Extent(layer * BLOCKS * page, page, page) for layer in range(layers))
    scrubber_of(memory, stream, "Always", extents).zero((), [9]).confirm()
    pages = memory.view(layers, BLOCKS, page)
    assert not pages[:, 9].any()
    assert bool((pages[:, [8, 10]] == MARK).all())


def test_a_step_reads_zeroes_where_it_uses_the_block_at_once(memory: Any, stream: str) -> None:
    scrubber = scrubber_of(memory, stream)
    keep_busy()
    memory.fill_(0x33)
    scrub = scrubber.zero([7], [8])
    copied = memory.view(BLOCKS, -1)[7].clone()
    scrub.confirm()
    assert not copied.any()


def test_zeroes_are_behind_the_step_that_still_writes(memory: Any, stream: str) -> None:
    scrubber = scrubber_of(memory, stream)
    torch.cuda.synchronize()
    keep_busy()
    memory.view(BLOCKS, -1)[5].fill_(0x44)
    scrubber.zero((), [5]).confirm()
    assert not memory.view(BLOCKS, -1)[5].any()


def test_a_graph_replayed_in_the_next_step_reads_zeroes_acknowledged_or_not(memory: Any, stream: str) -> None:
    source, seen = memory.view(BLOCKS, -1)[9], torch.empty(SIZE, dtype=torch.int8, device="cuda")
    scrubber = scrubber_of(memory, stream)
    seen.copy_(source)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        seen.copy_(source)
    memory.fill_(0x44)
    scrub = scrubber.zero((), [*range(10, BLOCKS), 9])
    scrubber.zero((), ())  # the next step has nothing to zero, and uses the block
    graph.replay()
    torch.cuda.synchronize()
    scrub.confirm()
    assert not seen.any()


def test_the_fence_is_behind_the_zeroes(memory: Any, stream: str) -> None:
    scrub = scrubber_of(memory, stream).zero([0], list(range(1, BLOCKS)))
    scrub.confirm()
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):  # a stream that waits for nothing
        left = memory.any().to("cpu")
    assert not bool(left)


def test_what_is_read_back_decides(memory: Any, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scrubber_of(memory, stream, "Sampled").zero([1], [2]).confirm()
    monkeypatch.setattr(BlockScrubber, "_zero", lambda self, ids: None)
    with pytest.raises(ScrubFailed):
        scrubber_of(memory, stream, "Sampled").zero((), [3]).confirm()


def test_reading_back_does_not_wait_for_later_steps(memory: Any, stream: str) -> None:
    scrubber = scrubber_of(memory, stream, "Always")
    scrubber.zero((), [1]).confirm()
    scrub = scrubber.zero((), [2])
    keep_busy(50)
    later = torch.cuda.Event()
    later.record()
    scrub.confirm()
    assert not later.query(), "the host waited for what was enqueued behind the read-back"


@pytest.mark.parametrize("count", [64, 1024, BLOCKS])
def test_the_bandwidth_is_a_plain_fills(memory: Any, count: int) -> None:
    scrubber, ids = scrubber_of(memory, "Main"), torch.randperm(BLOCKS)[:count].tolist()

    def seconds(action: Any) -> float:
        action()
        times = []
        for _ in range(20):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            action()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
        return statistics.median(times)

    scrub, fill = seconds(lambda: scrubber.zero((), ids)), seconds(memory[: count * SIZE].zero_)
    print(f"{count} blocks: scrub {count * SIZE / scrub / 1e9:.0f} GB/s, plain fill {count * SIZE / fill / 1e9:.0f} GB/s")
    assert count < 1024 or scrub <= fill / 0.8
