"""All that an accelerator does otherwise than a CPU: kernels that zero and read back, and the order between streams.

What was enqueued on a stream runs in its order; streams run beside each other, and the host sees nothing before it waits. Two
ways to order zeroes against the kernels of steps (docs/adr/0010 says why Main is the default):

- Main: on the stream of the forward pass, in front of it. Everything later sees them, graph replays included.
- Side: blocks that this step uses as in Main; all others on a stream of their own. That stream first waits for what the main
  stream had been given (the steps that still wrote to the blocks), and the main stream waits for the zeroes before its next step.

In both, an order is acknowledged only behind an event that the host has waited for. Imported where there is an accelerator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import triton
import triton.language as tl

from .errors import LaunchRefused
from .footprint import Extent
from .scrubber import Fence, Lane, Residue
from .settings import SCRUB_STREAMS

CHUNK: Final = 2048
"""Words per program of a kernel."""


@triton.jit  # type: ignore[untyped-decorator]
def _zero_blocks(raw, ids, table, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Program (i, e, c) zeroes chunk c of extent e of block ids[i]; `table` holds start, length and stride of each extent."""
    block, extent = tl.load(ids + tl.program_id(0)), table + tl.program_id(1) * 3
    at = tl.program_id(2).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    tl.store(raw + tl.load(extent) + block * tl.load(extent + 2) + at, 0, mask=at < tl.load(extent + 1))


@triton.jit  # type: ignore[untyped-decorator]
def _find_residue(raw, ids, table, found, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The same programs; whoever reads anything but zero sets `found`."""
    block, extent = tl.load(ids + tl.program_id(0)), table + tl.program_id(1) * 3
    at = tl.program_id(2).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    words = tl.load(raw + tl.load(extent) + block * tl.load(extent + 2) + at, mask=at < tl.load(extent + 1), other=0)
    tl.store(found + tl.full([CHUNK], 0, tl.int32), 1, mask=words != 0)  # all write the same, to the same place


class DeviceMemory:
    """A KV cache in an accelerator's memory: one launch per order, whatever number of layers a block has."""

    def __init__(self, raw: torch.Tensor, extents: Sequence[Extent]) -> None:
        """Args:
        raw: the whole buffer, int8, one dimension.
        extents: a block's footprint.
        """
        parts = [[extent.start, extent.length, extent.stride] for extent in extents]
        wide = not any(value % 8 for part in parts for value in part) and raw.numel() % 8 == 0
        width = 8 if wide else 1
        self._raw = raw.view(torch.int64) if wide else raw
        self._table = torch.tensor(parts, dtype=torch.int64).div(width, rounding_mode="floor").to(raw.device)
        self._grid = (len(parts), -(-max(length for _, length, _ in parts) // width // CHUNK))
        self._pinned = raw.device.type != "cpu"  # a CPU is here only under Triton's interpreter

    def zero(self, ids: Sequence[int]) -> None:
        _zero_blocks[(len(ids), *self._grid)](self._raw, self._index(ids), self._table, CHUNK=CHUNK)

    def residue(self, ids: Sequence[int]) -> Residue:
        found = torch.zeros(1, dtype=torch.int32, device=self._raw.device)
        _find_residue[(len(ids), *self._grid)](self._raw, self._index(ids), self._table, found, CHUNK=CHUNK)
        answer = torch.empty(1, dtype=torch.int32, pin_memory=self._pinned)
        answer.copy_(found, non_blocking=True)  # now, on this stream: asking the device later would wait for later steps too
        return lambda: bool(answer)

    def wipe(self) -> None:
        self._raw.zero_()

    def _index(self, ids: Sequence[int]) -> torch.Tensor:
        index = torch.tensor(ids, dtype=torch.int64, pin_memory=self._pinned)
        return index.to(self._raw.device, non_blocking=True)


class MainLane:
    """Everything on the stream of the forward pass, in front of it."""

    def __init__(self, api: Any) -> None:
        """Args:
        api: the device's module of torch (torch.cuda), for streams and events.
        """
        self._api = api

    def order(self, urgent: Sequence[int], idle: Sequence[int], launch: Callable[[Sequence[int]], None]) -> Fence | None:
        ids = [*idle, *urgent]
        if not ids:
            return None
        launch(ids)
        return _mark(self._api, self._api.current_stream())

    def drain(self) -> None:
        self._api.synchronize()


class SideLane(MainLane):
    """Blocks that nobody waits for on a stream of their own, beside the forward pass."""

    def __init__(self, api: Any) -> None:
        super().__init__(api)
        self._side = api.Stream()
        self._beside: Any = None

    def order(self, urgent: Sequence[int], idle: Sequence[int], launch: Callable[[Sequence[int]], None]) -> Fence | None:
        main = self._api.current_stream()
        if self._beside is not None:  # acknowledged or not: no step runs beside the zeroes of an earlier one
            main.wait_event(self._beside)
            self._beside = None
        fence = super().order(urgent, (), launch)
        if not idle:
            return fence
        self._side.wait_event(_mark(self._api, main))
        with self._api.stream(self._side):
            launch(idle)
        self._beside = _mark(self._api, self._side)
        return self._beside  # behind the urgent ones too: the side stream waited for a mark behind them


def make_lane(device: torch.device, stream: str) -> Lane:
    """The lane of a device.

    Raises:
        LaunchRefused: `stream` is neither Main nor Side.
    """
    if stream not in SCRUB_STREAMS:
        raise LaunchRefused(f"the stream of scrubs is none of {', '.join(SCRUB_STREAMS)}: set --kv-scrub-stream")
    api = torch.get_device_module(device)
    return SideLane(api) if stream == "Side" else MainLane(api)


def _mark(api: Any, stream: Any) -> Any:
    """An event behind everything enqueued on a stream so far."""
    event = api.Event()
    event.record(stream)
    return event
