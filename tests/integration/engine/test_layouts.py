"""Scrubbing block i zeroes the bytes of block i, all of them and no others, in every layout and spec of vLLM's.

The specs, the plan of the buffer and the layers' views are made by vLLM's own functions, as its engine core and its workers call
them. The bytes of a block are taken from the views: whatever a layer can address under that block's id, and the padding that no
layer addresses. Both memories are tested: the CPU's, and the accelerator's kernels under Triton's interpreter.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from blockwarden_engine import footprint, scrubber
from blockwarden_engine.errors import UnsupportedEngine
from blockwarden_engine.footprint import LASTING, REFUSED, SLIDING, WITHOUT_CACHE, Extent, keeps_blocks, plan_footprint
from blockwarden_engine.scrubber import HostMemory, make_scrubber

BLOCKS = 5
SCRUBBED = (4, 0, 2)
MARK = 0x5A
LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
OUTER = ("BLHNC", "BLNHC")
"""Layouts in which pages of different sizes, and padded ones, can be packed."""
COMPACT = ("LBHNC", "LBNHC", *OUTER)
INTERPRETED = ("full attention", "odd bytes", "latent and indexer, packed", "padded pages")
"""Cases for the kernels, whose interpreter is slow: they are given extents, and know nothing of specs."""


@dataclass(frozen=True)
class Case:
    """One model's cache: layer name -> spec, in groups, and the layouts that vLLM can lay it out in."""

    groups: tuple[dict[str, Any], ...]
    layouts: tuple[str, ...] = LAYOUTS


def cases() -> dict[str, Case]:
    from vllm.v1 import kv_cache_interface as kv

    dense: dict[str, Any] = {"block_size": 16, "num_kv_heads": 4, "head_size": 8, "dtype": torch.float16}
    latent = dense | {"num_kv_heads": 1, "head_size": 40}
    full, window = kv.FullAttentionSpec(**dense), kv.SlidingWindowSpec(**dense, sliding_window=32)
    state = kv.MambaSpec(block_size=64, shapes=((3, 40), (5, 8, 7)), dtypes=(torch.float16, torch.float32))
    mla = kv.MLAAttentionSpec(**latent)

    def layers(spec: Any, count: int, prefix: str = "l") -> dict[str, Any]:
        return {f"{prefix}{at}": spec for at in range(count)}

    return {
        "full attention": Case((layers(full, 3),)),
        "values of another size": Case((layers(kv.FullAttentionSpec(**dense, head_size_v=4), 2),)),
        "8-bit with scales": Case((layers(kv.FullAttentionSpec(
            **dense | {"dtype": torch.int8}, kv_quant_mode=kv.KVQuantMode.INT8_PER_TOKEN_HEAD, state_content_bytes=72), 2),)),
        "odd bytes": Case((layers(kv.FullAttentionSpec(**dense | {"dtype": torch.uint8}, state_content_bytes=13), 2),)),
        "sliding window": Case((layers(window, 2),)),
        "chunked local": Case((layers(kv.ChunkedLocalAttentionSpec(**dense, attention_chunk_size=64), 2),)),
        "reference window": Case((layers(kv.RSWASpec(**dense, rswa_window=32), 2),)),
        "attention sinks": Case((layers(kv.SinkFullAttentionSpec(**dense, sink_len=4), 2),)),
        "cross attention": Case((layers(full, 2), layers(kv.CrossAttentionSpec(**dense), 2, "x"))),
        "pooled states": Case((layers(kv.CrossAttentionSpec(**dense, tokens_per_state=Fraction(1, 2)), 2, "x"),)),
        "ring buffers": Case((layers(full, 2), layers(kv.CircularBufferSpec(**dense), 1, "r"))),
        "hybrid, groups of unequal length": Case((layers(full, 2), layers(window, 3, "w"), layers(window, 1, "v"))),
        "latent": Case((layers(mla, 3),)),
        "latent, padded to an alignment": Case((layers(replace(mla, alignment=96), 2),), OUTER),
        "latent with its window": Case((
            layers(mla, 2), layers(kv.SlidingWindowMLASpec(**latent, sliding_window=32), 2, "w")
        )),
        "hidden states": Case((layers(kv.HiddenStateCacheSpec(**latent), 1),)),
        "latent and indexer, packed": Case((
            {"m0": mla, "i0": kv.MLAAttentionSpec(**latent | {"head_size": 17}), "m1": mla,
             "i1": kv.MLAAttentionSpec(**latent | {"head_size": 17})},
        ), OUTER),
        "two page sizes in one group": Case(({"a": full, "b": kv.FullAttentionSpec(**dense | {"num_kv_heads": 2})},), COMPACT),
        "state": Case((layers(state, 2),)),
        "state beside attention, its page padded": Case((
            layers(replace(full, block_size=64), 2),
            layers(replace(state, page_size_padded=replace(full, block_size=64).page_size_bytes), 2, "m"),
        ), COMPACT),
        "padded pages": Case((layers(replace(full, page_size_padded=full.page_size_bytes + 136), 3),), COMPACT),
        "aligned blocks": Case((layers(replace(full, block_stride_alignment=3072), 3),), COMPACT),
    }  # fmt: skip


def build(case: Case, layout_name: str) -> tuple[Any, Any, dict[str, torch.Tensor]]:
    """(config, layout, views by layer), by vLLM's own planner and allocator."""
    from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec, UniformTypeKVCacheSpecs
    from vllm.v1.kv_cache_layout import KVCacheLayout
    from vllm.v1.worker.utils import allocate_kv_cache

    layout = KVCacheLayout[layout_name]
    groups = []
    for layers in case.groups:
        first = next(iter(layers.values()))
        spec = first if len(set(layers.values())) == 1 else UniformTypeKVCacheSpecs(first.block_size, kv_cache_specs=layers)
        groups.append(KVCacheGroupSpec(list(layers), spec))
    cache = SimpleNamespace(
        get_resolved_kv_cache_layout=lambda: layout, num_gpu_blocks_override=BLOCKS, prefix_cache_retention_interval=None
    )
    vllm_config: Any = SimpleNamespace(attention_config=SimpleNamespace(hisparse_config=None), cache_config=cache)
    config = get_kv_cache_config_from_groups(vllm_config, groups, 1 << 30)
    assert config.num_blocks == BLOCKS
    return config, layout, allocate_kv_cache(config, torch.device("cpu"), layout)


def addressed(view: torch.Tensor, block: int) -> torch.Tensor:
    """Offsets, in the buffer, of every byte that a layer can address under a block's id."""
    size = view.element_size()
    rows = view[block]
    offsets = torch.zeros(1, dtype=torch.int64)
    for length, stride in zip(rows.shape, rows.stride(), strict=True):
        offsets = (offsets[:, None] + torch.arange(length) * stride).flatten()
    return ((offsets + rows.storage_offset())[:, None] * size + torch.arange(size)).flatten()


@pytest.fixture(scope="module")
def device(vllm_imported: None) -> Iterator[ModuleType]:
    """A private copy of the accelerator's module whose kernels run under Triton's interpreter."""
    path = Path(footprint.__file__).with_name("device.py")
    spec = importlib.util.spec_from_file_location("blockwarden_engine.device_interpreted", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        yield module
        del sys.modules[spec.name]


def memories(device: ModuleType) -> dict[str, Callable[[torch.Tensor, tuple[Extent, ...]], Any]]:
    return {"cpu": lambda raw, extents: HostMemory(raw, extents, BLOCKS), "device": device.DeviceMemory}


def check(raw: torch.Tensor, views: dict[str, torch.Tensor], memory: Any) -> None:
    """Raises AssertionError unless the memory zeroes and reads back exactly the blocks it is told to."""
    owner = torch.full((raw.numel(),), -1)
    for block in range(BLOCKS):
        for view in views.values():
            owner[addressed(view, block)] = block
    raw.fill_(MARK)
    assert memory.residue([1])() is True
    memory.zero(SCRUBBED)
    zeroed, told = raw == 0, torch.isin(owner, torch.tensor(SCRUBBED))
    assert bool((raw[~zeroed] == MARK).all())
    assert bool(zeroed[told].all()), "a byte of a scrubbed block was left"
    assert not zeroed[(owner >= 0) & ~told].any(), "a byte of another block was zeroed"
    assert int(zeroed.sum()) * BLOCKS == len(SCRUBBED) * raw.numel(), "padding was left, or taken from another block"
    assert memory.residue(SCRUBBED)() is False
    mine = torch.nonzero(owner == 2).flatten()
    for at in (int(mine[0]), int(mine[-1]), int(torch.nonzero(zeroed).max())):
        raw[at] = 1
        assert memory.residue(SCRUBBED)() is True, f"byte {at} is not read back"
        raw[at] = 0


@pytest.mark.parametrize("kind", ["cpu", "device"])
def test_every_layout_of_every_spec_is_scrubbed_to_the_byte(device: ModuleType, kind: str) -> None:
    seen = set()
    for name, case in cases().items() if kind == "cpu" else ((name, cases()[name]) for name in INTERPRETED):
        for layout_name in case.layouts:
            config, layout, views = build(case, layout_name)
            raw = torch.empty(0, dtype=torch.int8).set_(next(iter(views.values())).untyped_storage())
            try:
                check(raw, views, memories(device)[kind](raw, plan_footprint(config, layout)))
            except AssertionError as error:
                raise AssertionError(f"{name} in {layout_name}: {error}") from error
            seen |= {type(spec).__name__ for group in case.groups for spec in group.values()}
    assert kind == "device" or seen == LASTING | SLIDING, "a spec that the footprint accepts is not tested"


class PageOnly(HostMemory):
    """A twin that zeroes the first layer's page and forgets the others, and the padding."""

    def __init__(self, raw: torch.Tensor, extents: tuple[Extent, ...], blocks: int, length: int) -> None:
        super().__init__(raw, [replace(extents[0], length=length)], blocks)


class OffByOne(HostMemory):
    """A twin that zeroes the neighbour."""

    def zero(self, ids: Any) -> None:
        super().zero([(block + 1) % BLOCKS for block in ids])


@pytest.mark.parametrize("layout_name", LAYOUTS)
def test_twins_that_zero_less_or_something_else_are_caught(vllm_imported: None, layout_name: str) -> None:
    config, layout, views = build(cases()["full attention"], layout_name)
    raw = torch.empty(0, dtype=torch.int8).set_(next(iter(views.values())).untyped_storage())
    extents = plan_footprint(config, layout)
    for twin in (PageOnly(raw, extents, BLOCKS, 64), OffByOne(raw, extents, BLOCKS)):
        with pytest.raises(AssertionError):
            check(raw, views, twin)


def test_every_spec_class_of_vllm_has_a_verdict(vllm_imported: None) -> None:
    from vllm.v1 import kv_cache_interface as kv

    abstract = {"KVCacheSpec", "AttentionSpec", "UniformTypeKVCacheSpecs"}
    classes = {
        name for name, cls in vars(kv).items()
        if isinstance(cls, type) and issubclass(cls, kv.KVCacheSpec) and cls.__module__ == kv.__name__
    }  # fmt: skip
    assert classes - abstract == LASTING | SLIDING | WITHOUT_CACHE | REFUSED.keys()


def test_an_unknown_spec_and_a_refused_one_end_the_start_with_one_sentence(vllm_imported: None) -> None:
    from vllm.v1 import kv_cache_interface as kv

    class PatchedSpec(kv.FullAttentionSpec):  # type: ignore[misc]
        """What a platform plugin may register."""

    dense: dict[str, Any] = {"block_size": 16, "num_kv_heads": 2, "head_size": 8, "dtype": torch.float16}
    refused = {
        "PatchedSpec: a kind of KV cache that is not known": PatchedSpec(**dense),
        "HiSparseResidentSpec: HiSparse keeps a second pool": kv.HiSparseResidentSpec(block_size=16, page_size=64),
    }
    for sentence, spec in refused.items():
        with pytest.raises(UnsupportedEngine, match=sentence) as found:
            footprint.check_specs([spec])
        assert "\n" not in str(found.value)
        wrapped = kv.UniformTypeKVCacheSpecs(16, kv_cache_specs={"a": kv.FullAttentionSpec(**dense), "b": spec})
        with pytest.raises(UnsupportedEngine, match=sentence):
            footprint.check_specs([wrapped])


def test_requests_keep_blocks_in_groups_without_a_window_only(vllm_imported: None) -> None:
    every = {type(spec).__name__: spec for case in cases().values() for group in case.groups for spec in group.values()}
    assert {name for name, spec in every.items() if keeps_blocks(spec)} == LASTING


def test_layers_that_overlay_each_other_with_other_strides_are_refused(vllm_imported: None) -> None:
    config, layout, _ = build(cases()["hybrid, groups of unequal length"], "LBHNC")
    tensor = config.kv_cache_tensors[1]
    tensor.block_stride, tensor.layer_stride = tensor.block_stride // 2, tensor.layer_stride // 2
    with pytest.raises(UnsupportedEngine, match="different strides"):
        plan_footprint(config, layout)


def test_a_cache_that_is_larger_than_its_buffer_or_in_two_is_refused(vllm_imported: None) -> None:
    config, layout, views = build(cases()["full attention"], "LBHNC")
    apart = views | {"other": torch.zeros(8)}
    with pytest.raises(UnsupportedEngine, match="2 backing buffers"):
        make_scrubber(config, apart, layout, verify="Off", stream="Main")
    config.kv_cache_tensors[0].size -= 1
    with pytest.raises(UnsupportedEngine, match="is described up to byte"):
        plan_footprint(config, layout)


def test_read_back_is_sampled_on_an_accelerator_and_off_on_a_cpu_unless_set(
    device: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, layout, views = build(cases()["full attention"], "BLHNC")
    monkeypatch.setitem(sys.modules, "blockwarden_engine.device", device)
    made = {mode: make_scrubber(config, views, layout, verify=mode, stream="Main")._verify for mode in ("", "Always")}
    assert made == {"": "Off", "Always": "Always"}
    meta = {name: view.to("meta") for name, view in views.items()}
    monkeypatch.setattr(scrubber, "plan_footprint", lambda *_: (Extent(0, 8, 8),))
    monkeypatch.setattr(device, "make_lane", lambda *_: None)
    monkeypatch.setattr(device, "DeviceMemory", lambda *_: None)
    assert make_scrubber(config, {"l0": meta["l0"]}, layout, verify="", stream="Main")._verify == "Sampled"
