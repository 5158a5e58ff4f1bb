"""The scrubber on a real accelerator: its zeroes in front of later kernels, its acknowledgement behind them, graphs included."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blockwarden_engine.errors import ScrubFailed
from blockwarden_engine.scrubber import BlockScrubber, make_fence

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator on this machine"),
]
BLOCKS, WORDS = 4096, 8192


@pytest.fixture
def memory() -> Any:
    """A pool of BLOCKS blocks of 64 KiB, all of it written."""
    return torch.full((BLOCKS * WORDS * 8,), 0x5A, dtype=torch.int8, device="cuda")


def scrubber_of(memory: Any, verify: str = "Off") -> BlockScrubber:
    return BlockScrubber(memory, [memory.view(torch.int64).view(BLOCKS, WORDS)], verify=verify)


def test_confirmed_blocks_are_zero_and_their_neighbours_untouched(memory: Any) -> None:
    ids = list(range(0, BLOCKS, 3))
    scrubber_of(memory).zero(ids).confirm()
    rows = memory.view(BLOCKS, -1)
    assert not rows[ids].any()
    assert bool((rows[1::3] == 0x5A).all())


def test_a_kernel_enqueued_behind_the_zeroes_reads_zeroes(memory: Any) -> None:
    burn = torch.randn(4096, 4096, device="cuda")
    for _ in range(20):  # the device is busy long after the host has gone on
        burn = burn @ burn / 64
    memory.fill_(0x33)
    scrub = scrubber_of(memory).zero([7])
    copied = memory.view(BLOCKS, -1)[7].clone()
    assert scrub.fence is not None
    scrub.confirm()
    assert not copied.any()


def test_a_graph_replayed_behind_the_zeroes_reads_zeroes(memory: Any) -> None:
    source, seen = memory.view(BLOCKS, -1)[9], torch.empty(WORDS * 8, dtype=torch.int8, device="cuda")
    seen.copy_(source)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        seen.copy_(source)
    memory.fill_(0x44)
    scrub = scrubber_of(memory).zero([9])
    graph.replay()
    scrub.confirm()
    torch.cuda.synchronize()
    assert not seen.any()


def test_the_fence_is_behind_the_zeroes(memory: Any) -> None:
    burn = torch.randn(8192, 8192, device="cuda")
    for _ in range(10):
        burn = burn @ burn / 90
    scrub = scrubber_of(memory).zero(list(range(BLOCKS)))
    early = make_fence(memory.device)
    assert early is not None
    scrub.confirm()
    assert scrub.fence is not None
    assert bool(scrub.fence.query())


def test_what_is_read_back_decides(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scrubber_of(memory, "Always").zero([1, 2]).confirm()
    monkeypatch.setattr(BlockScrubber, "_zero", lambda self, ids: None)
    with pytest.raises(ScrubFailed):
        scrubber_of(memory, "Always").zero([3]).confirm()
