"""Zeroing of KV blocks in the memory that the attention kernels use, and the proof that the zeroes are there.

Three parts: where a block lies (`footprint`), how its bytes are written and read back (`Memory`), and in which order with the
kernels of the step (`Lane`). On a CPU an operation is done when it returns; what an accelerator does otherwise is all in
`device`. Zeroes count as done only once an event recorded behind them has been waited for (`Scrub.confirm`), which happens where
the step's output is fetched.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch

from .errors import LaunchRefused, ScrubFailed, UnsupportedEngine
from .footprint import Extent, plan_footprint
from .settings import SCRUB_VERIFY_MODES

SAMPLED_BLOCKS: Final = 1
"""How many blocks of one order are read back in mode Sampled."""

Residue = Callable[[], bool]
"""Whether a read-back found a byte that is not zero; may be asked once what was enqueued is done."""


class Fence(Protocol):
    """A point in a device's work that the host can wait for."""

    def synchronize(self) -> None:
        """Returns when everything enqueued before this point is in memory."""


class Memory(Protocol):
    """The bytes of a KV cache by block. Operations are enqueued on the current stream; one call is one pass."""

    def zero(self, ids: Sequence[int]) -> None:
        """Zeroes the whole footprint of the blocks."""

    def residue(self, ids: Sequence[int]) -> Residue:
        """Reads the blocks back."""

    def wipe(self) -> None:
        """Zeroes the whole buffer."""


class Lane(Protocol):
    """The order between zeroes and the kernels of steps."""

    def order(self, urgent: Sequence[int], idle: Sequence[int], launch: Callable[[Sequence[int]], None]) -> Fence | None:
        """Runs `launch` over all blocks, behind what was enqueued before and in front of the next step that may use them.

        Args:
            urgent: blocks that this step's forward pass uses.
            idle: blocks that nobody uses before this order is acknowledged.
            launch: enqueues zeroes for blocks on the current stream.

        Returns:
            What to wait for before the order is acknowledged; None if it is done.
        """

    def drain(self) -> None:
        """Waits until everything enqueued is done."""


@dataclass(slots=True)
class Scrub:
    """Zeroes that were enqueued: `confirm` returns once they are in memory."""

    fence: Fence | None
    residues: list[Residue] = field(default_factory=list)

    def confirm(self) -> None:
        """Raises:
        ScrubFailed: a block was read back and is not zero.
        """
        if self.fence is not None:
            self.fence.synchronize()
        if any(residue() for residue in self.residues):
            raise ScrubFailed("a scrubbed block was read back and is not zero")


class HostMemory:
    """A KV cache in the CPU's memory.

    NumPy writes all rows of an extent in one pass of C, at memset's speed; torch's `index_fill_` is several times slower here,
    and a call per row costs more than a small row.
    """

    def __init__(self, raw: torch.Tensor, extents: Sequence[Extent], blocks: int) -> None:
        """Args:
        raw: the whole buffer, int8, one dimension.
        extents: a block's footprint.
        blocks: how many blocks it holds.
        """
        self._raw = raw
        self._runs = [_words(raw, extent, blocks).numpy() for extent in extents]

    def zero(self, ids: Sequence[int]) -> None:
        rows = list(ids)  # a tuple would count as one index of several dimensions
        for run in self._runs:
            run[rows] = 0

    def residue(self, ids: Sequence[int]) -> Residue:
        found = any(bool(run[block].any()) for run in self._runs for block in ids)
        return lambda: found

    def wipe(self) -> None:
        self._raw.zero_()


class HostLane:
    """The CPU's: what is launched is done when it returns."""

    def order(self, urgent: Sequence[int], idle: Sequence[int], launch: Callable[[Sequence[int]], None]) -> None:
        if ids := [*idle, *urgent]:
            launch(ids)

    def drain(self) -> None:
        """Nothing is ever under way."""


class BlockScrubber:
    """Zeroes blocks of one worker's KV cache.

    Attributes:
        memory: its bytes.
        zeroed: how many blocks were zeroed so far.
    """

    def __init__(self, memory: Memory, lane: Lane, *, verify: str = "Off") -> None:
        """Args:
        memory: the KV cache.
        lane: the order with everything else that the device does.
        verify: Off, Sampled or Always: how many blocks of an order are read back.

        Raises:
            LaunchRefused: `verify` is none of these.
        """
        if verify not in SCRUB_VERIFY_MODES:
            raise LaunchRefused(f"the read-back mode of scrubs is none of {', '.join(SCRUB_VERIFY_MODES)}: set --kv-scrub-verify")
        self.memory, self._lane, self._verify = memory, lane, verify
        self.zeroed = 0

    def zero(self, urgent: Sequence[int], idle: Sequence[int] = ()) -> Scrub:
        """Enqueues zeroes over the whole footprint of blocks; see `Lane.order` for the difference. Call it at every step, also
        without blocks: it puts what was zeroed beside earlier steps in front of this one."""
        scrub = Scrub(None)

        def launch(ids: Sequence[int]) -> None:
            self._zero(ids)
            if sample := self._sample(ids):
                scrub.residues.append(self.memory.residue(sample))

        scrub.fence = self._lane.order(urgent, idle, launch)
        self.zeroed += len(urgent) + len(idle)
        return scrub

    def wipe(self) -> None:
        """Zeroes the whole buffer and waits for it."""
        self._lane.drain()
        self.memory.wipe()
        self._lane.drain()

    def _zero(self, ids: Sequence[int]) -> None:
        self.memory.zero(ids)

    def _sample(self, ids: Sequence[int]) -> Sequence[int]:
        if self._verify == "Always":
            return ids
        if self._verify == "Sampled":
            return random.sample(ids, min(SAMPLED_BLOCKS, len(ids)))
        return ()


def make_scrubber(config: Any, caches: dict[str, Any], layout: Any, *, verify: str, stream: str) -> BlockScrubber:
    """The scrubber of a worker's KV cache.

    Args:
        config: vLLM's KVCacheConfig of this worker.
        caches: layer name -> its cache view (or views), all over one storage.
        layout: the resolved KVCacheLayout.
        verify: see BlockScrubber; empty for Sampled on an accelerator and Off on a CPU.
        stream: Main or Side: on which stream of an accelerator idle blocks are zeroed.

    Raises:
        UnsupportedEngine: the cache is laid out in a way that is not known to be covered whole.
    """
    storages = {storage.data_ptr(): storage for storage in map(_storage, caches.values())}
    if len(storages) != 1:
        raise UnsupportedEngine(f"the KV cache has {len(storages)} backing buffers and only one is known: use another model")
    (storage,) = storages.values()
    raw = torch.empty(0, dtype=torch.int8, device=storage.device).set_(storage)
    extents = plan_footprint(config, layout)
    if raw.device.type == "cpu":
        return BlockScrubber(HostMemory(raw, extents, config.num_blocks), HostLane(), verify=verify or "Off")
    from .device import DeviceMemory, make_lane

    return BlockScrubber(DeviceMemory(raw, extents), make_lane(raw.device, stream), verify=verify or "Sampled")


def _storage(view: Any) -> Any:
    first = view[0] if isinstance(view, (list, tuple)) else view
    return first.untyped_storage()


def _words(raw: torch.Tensor, extent: Extent, blocks: int) -> torch.Tensor:
    """One row per block over an extent, in 8-byte words where these fit."""
    wide = not any(value % 8 for value in (extent.start, extent.length, extent.stride)) and raw.numel() % 8 == 0
    width, buffer = (8, raw.view(torch.int64)) if wide else (1, raw)
    shape, strides = (blocks, extent.length // width), (extent.stride // width, 1)
    return torch.as_strided(buffer, shape, strides, extent.start // width)
