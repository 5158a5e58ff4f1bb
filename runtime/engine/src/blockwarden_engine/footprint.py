"""Where block b lies in a KV cache: the byte ranges to zero for it, from vLLM's own description of its one buffer. Pure.

vLLM 0.32 allocates one buffer and describes by offset, layer stride and block stride where the page of layer l and block b
begins. Cache groups overlay each other in it, which is sound because a block id belongs to one group at a time. So the footprint
of a block is the same whatever group uses it: everything that any group may have written, and the padding between the pages.

Every class of `v1/kv_cache_interface` is named here, and one that is not is refused: a spec that nobody has looked at may keep
bytes elsewhere. tests/integration/engine/test_layouts.py builds each of them as vLLM does and looks at every byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from .errors import UnsupportedEngine

SPEC_MODULE: Final = "vllm.v1.kv_cache_interface"
LASTING: Final = frozenset({
    "FullAttentionSpec", "MLAAttentionSpec", "SinkFullAttentionSpec", "HiddenStateCacheSpec", "CrossAttentionSpec",
    "CircularBufferSpec",
})  # fmt: skip
"""Specs whose requests keep their blocks until they end."""
SLIDING: Final = frozenset({
    "SlidingWindowSpec", "SlidingWindowMLASpec", "ChunkedLocalAttentionSpec", "RSWASpec", "MambaSpec",
})  # fmt: skip
"""Specs whose requests give blocks back while they run."""
WITHOUT_CACHE: Final = frozenset({"EncoderOnlyAttentionSpec"})
REFUSED: Final = {
    "HiSparseHotSpec": "HiSparse keeps a second pool of blocks in host memory",
    "HiSparseResidentSpec": "HiSparse keeps a second pool of blocks in host memory",
}


@dataclass(frozen=True, order=True, slots=True)
class Extent:
    """A stretch of bytes that every block has: block b's begins at `start + b * stride` and is `length` long."""

    start: int
    length: int
    stride: int


def plan_footprint(config: Any, layout: Any) -> tuple[Extent, ...]:
    """The extents of a block, which together are its whole footprint.

    Args:
        config: vLLM's KVCacheConfig of one worker.
        layout: the resolved KVCacheLayout.

    Raises:
        UnsupportedEngine: a spec that is not known, a part that lies outside of the device's pool, or parts that overlay each
            other in a way in which one block's bytes are another's too.
    """
    check_specs(group.kv_cache_spec for group in config.kv_cache_groups)
    blocks, extents = config.num_blocks, set[Extent]()
    for tensor in config.kv_cache_tensors:
        if tensor.host_resident or config.num_blocks_of(tensor) != blocks:
            raise UnsupportedEngine("part of the KV cache is not in the device's own pool of blocks: use another model")
        extents.update(_extents(tensor, layout, blocks))
    ordered = tuple(sorted(extents))
    _check_disjoint(ordered, blocks, max((tensor.size for tensor in config.kv_cache_tensors), default=0))
    return ordered


def check_specs(specs: Iterable[Any]) -> None:
    """Raises:
    UnsupportedEngine: a group's spec, or that of one of its layers, is of a class that is not known to be scrubbed whole.
    """
    for spec in _layer_specs(specs):
        name = type(spec).__name__
        if name in REFUSED:
            raise UnsupportedEngine(f"{name}: {REFUSED[name]}, which is not scrubbed: use another model or setting")
        if type(spec).__module__ != SPEC_MODULE or name not in LASTING | SLIDING | WITHOUT_CACHE:
            raise UnsupportedEngine(f"{name}: a kind of KV cache that is not known to be scrubbed whole: use another model")


def keeps_blocks(spec: Any) -> bool:
    """Whether requests keep the blocks of a group with this spec until they end."""
    return all(type(layer).__name__ in LASTING for layer in _layer_specs([spec]))


def _layer_specs(specs: Iterable[Any]) -> Iterable[Any]:
    """`specs`, with the wrapper of groups whose layers differ (UniformTypeKVCacheSpecs) taken apart."""
    for spec in specs:
        yield from getattr(spec, "kv_cache_specs", {"": spec}).values()


def _extents(tensor: Any, layout: Any, blocks: int) -> Iterable[Extent]:
    stride = tensor.block_stride
    if layout.is_block_outermost:  # one tile holds every layer of a block, whatever other tensors overlay on it
        yield Extent(0, stride, stride)
        return
    starts = range(tensor.offset, tensor.offset + len(tensor.layers) * tensor.layer_stride, tensor.layer_stride)
    if layout.is_block_compact:  # one padded page per layer and block
        yield from (Extent(start, stride, stride) for start in starts)
        return
    region = stride * blocks  # LHBNC: each head of each layer has a region of its own
    if tensor.layer_stride % region:
        raise UnsupportedEngine(f"KV-cache layout {layout.name} scatters a block in an unknown way: unset VLLM_KV_CACHE_LAYOUT")
    yield from (Extent(at, stride, stride) for start in starts for at in range(start, start + tensor.layer_stride, region))


def _check_disjoint(extents: tuple[Extent, ...], blocks: int, size: int) -> None:
    end = 0
    for extent in extents:
        if extent.start < end:
            raise UnsupportedEngine(
                "layers overlay each other with different strides, so blocks would share bytes: use another model"
            )
        end = extent.start + extent.stride * blocks
    if end > size:
        raise UnsupportedEngine(f"the KV cache is described up to byte {end} and has {size}: use vLLM as released")
