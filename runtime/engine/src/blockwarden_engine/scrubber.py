"""Zeroing of KV blocks in the memory that the attention kernels use, and the proof that the zeroes are there.

vLLM 0.32 allocates one buffer for all layers and describes by offsets and strides where block b of a layer lies. A block's
whole footprint is zeroed, padding included. On a GPU zeroes are enqueued on the stream that the forward pass uses, in front of
it: so every later kernel of any step sees them, graph replays included, without a wait on the host. They count as done only
once an event recorded behind them has been waited for (`Scrub.confirm`), which happens where the step's output is fetched.

Torch is imported here and in `worker` only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .errors import LaunchRefused, ScrubFailed, UnsupportedEngine
from .settings import SCRUB_VERIFY_MODES

SAMPLED_BLOCKS = 1
"""How many blocks of one order are read back in mode Sampled."""


class Fence(Protocol):
    """A point in a device's stream that the host can wait for."""

    def synchronize(self) -> None:
        """Returns when everything enqueued before this point is in memory."""


def make_fence(device: torch.device) -> Fence | None:
    """A fence behind everything enqueued so far on the current stream; None on the CPU, where work is done when it returns."""
    if device.type == "cpu":
        return None
    event = torch.Event(device)
    event.record()
    return event


@dataclass(slots=True)
class Scrub:
    """Zeroes that were enqueued: `confirm` returns once they are in memory.

    `residue` is a tensor of one element, non-zero if a read-back found anything; None when nothing was read back.
    """

    fence: Fence | None
    residue: torch.Tensor | None

    def confirm(self) -> None:
        """Raises:
        ScrubFailed: a block was read back and is not zero.
        """
        if self.fence is not None:
            self.fence.synchronize()
        if self.residue is not None and bool(self.residue):
            raise ScrubFailed("a scrubbed block was read back and is not zero")


class BlockScrubber:
    """Zeroes blocks of one worker's KV cache.

    Attributes:
        zeroed: how many blocks were zeroed so far.
    """

    def __init__(
        self,
        raw: torch.Tensor,
        runs: Sequence[torch.Tensor],
        *,
        verify: str = "Off",
        fence: Callable[[torch.device], Fence | None] = make_fence,
    ) -> None:
        """Args:
        raw: the whole backing buffer, int8, one dimension.
        runs: views of it whose first dimension counts blocks; together they cover every byte of a block.
        verify: Off, Sampled or Always: how many blocks of an order are read back.
        fence: makes a fence on the current stream.

        Raises:
            LaunchRefused: `verify` is none of these.
        """
        if verify not in SCRUB_VERIFY_MODES:
            raise LaunchRefused(f"the read-back mode of scrubs is none of {', '.join(SCRUB_VERIFY_MODES)}: set --kv-scrub-verify")
        self._raw, self._runs, self._verify, self._fence = raw, tuple(runs), verify, fence
        self.zeroed = 0

    def zero(self, ids: Sequence[int]) -> Scrub:
        """Enqueues zeroes over the whole footprint of `ids` in front of whatever is enqueued next."""
        self._zero(ids)
        self.zeroed += len(ids)
        residue = self._residue(self._sample(ids))
        return Scrub(self._fence(self._raw.device), residue)

    def wipe(self) -> None:
        """Zeroes the whole buffer and waits for it."""
        self._raw.zero_()
        if (fence := self._fence(self._raw.device)) is not None:
            fence.synchronize()

    def _zero(self, ids: Sequence[int]) -> None:
        if self._raw.device.type == "cpu":  # a memset per row: several times faster than index_fill_ there
            for run in self._runs:
                for block in ids:
                    run[block].zero_()
            return
        index = torch.tensor(ids, dtype=torch.int64, device="cpu").to(self._raw.device, non_blocking=True)
        for run in self._runs:
            run.index_fill_(0, index, 0)

    def _sample(self, ids: Sequence[int]) -> Sequence[int]:
        if self._verify == "Always":
            return ids
        if self._verify == "Sampled":
            return random.sample(ids, min(SAMPLED_BLOCKS, len(ids)))
        return ()

    def _residue(self, ids: Sequence[int]) -> torch.Tensor | None:
        if not ids:
            return None
        index = torch.tensor(ids, dtype=torch.int64, device=self._raw.device)
        found = [run.index_select(0, index).any() for run in self._runs]
        return torch.stack(found).any()


def make_scrubber(config: Any, caches: dict[str, Any], layout: Any, *, verify: str) -> BlockScrubber:
    """The scrubber of a worker's KV cache.

    Args:
        config: vLLM's KVCacheConfig of this worker.
        caches: layer name -> its cache view (or views), all over one storage.
        layout: the resolved KVCacheLayout.
        verify: see BlockScrubber.

    Raises:
        UnsupportedEngine: the cache is laid out in a way that is not known to be covered whole.
    """
    storages = {_storage(view) for view in caches.values()}
    if len(storages) != 1:
        raise UnsupportedEngine(f"the KV cache has {len(storages)} backing buffers and only one is known: use another model")
    raw = next(iter(storages)).tensor
    runs: dict[tuple[int, int, int], torch.Tensor] = {}
    for tensor in config.kv_cache_tensors:
        if tensor.host_resident or config.num_blocks_of(tensor) != config.num_blocks:
            raise UnsupportedEngine("part of the KV cache is not in the device's own pool of blocks: use another model")
        for start, length in _extents(tensor, layout):
            key = (start, length, tensor.block_stride)
            runs.setdefault(key, torch.as_strided(raw, (config.num_blocks, length), (tensor.block_stride, 1), start))
    return BlockScrubber(raw, [_wide(run) for run in runs.values()], verify=verify)


@dataclass(frozen=True, slots=True)
class _Storage:
    """A backing buffer, equal to another view of the same one."""

    address: int
    tensor: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Storage) and self.address == other.address

    def __hash__(self) -> int:
        return hash(self.address)


def _storage(view: Any) -> _Storage:
    first = view[0] if isinstance(view, (list, tuple)) else view
    storage = first.untyped_storage()
    return _Storage(storage.data_ptr(), torch.empty(0, dtype=torch.int8, device=first.device).set_(storage))


def _extents(tensor: Any, layout: Any) -> list[tuple[int, int]]:
    """(offset of block 0, bytes) of every contiguous stretch that a block has in one KVCacheTensor."""
    if layout.is_block_outermost:  # one tile holds every layer of a block, and what other tensors overlay on it
        return [(tensor.offset // tensor.block_stride * tensor.block_stride, tensor.block_stride)]
    if layout.is_block_compact:  # one padded page per layer and block
        return [(tensor.offset + layer * tensor.layer_stride, tensor.block_stride) for layer in range(len(tensor.layers))]
    raise UnsupportedEngine(f"KV-cache layout {layout.name} scatters a block over the cache: leave VLLM_KV_CACHE_LAYOUT unset")


def _wide(run: torch.Tensor) -> torch.Tensor:
    """The same bytes as 8-byte words where they divide evenly: device fills are an order of magnitude faster on those."""
    aligned = run.shape[1] % 8 == 0 and run.stride(0) % 8 == 0 and run.storage_offset() % 8 == 0
    return run.view(torch.int64) if aligned else run
