"""vLLM's worker with scrubbing, a shadow table and acknowledgements.

`--worker-cls blockwarden_engine.worker.BlockwardenWorker`. A subclass of whatever worker the platform has; works over both of
vLLM's model runners because it touches steps on their way in and outputs on their way out, and nothing in between.
"""

from __future__ import annotations

import logging
import os
from typing import Any, Final

import torch

from .compat import worker_api, worker_base
from .errors import MissingAck
from .footprint import keeps_blocks
from .guard_worker import ShadowTable, Table
from .installed import require_plugin
from .scrubber import BlockScrubber, make_scrubber
from .settings import SCRUB_STREAM_ENV, SCRUB_STREAMS, SCRUB_VERIFY_ENV
from .steps import Pending, StepKeeper

logger = logging.getLogger("vllm.blockwarden")

SCRUB_FAILED_STATUS: Final = 70
"""Exit status of a worker that could not zero its blocks while other ranks wait for it in a collective."""

_Base: Any = worker_base()
_AsyncOutput: Any = worker_api().AsyncModelRunnerOutput


class AckedOutput(_AsyncOutput):
    """An output that is still being computed; fetching it waits for the zeroes of its step as well."""

    def __init__(self, worker: BlockwardenWorker, inner: Any, pending: Pending) -> None:
        self._worker, self._inner, self._pending = worker, inner, pending

    def get_output(self) -> Any:
        inner = self._inner
        output = inner.get_output() if isinstance(inner, _AsyncOutput) else inner
        return self._worker.settle(self._pending, output)


class BlockwardenWorker(_Base):
    """One rank. Only its scrubs, its shadow table and its acknowledgements are ours."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        require_plugin("worker")
        super().__init__(*args, **kwargs)
        self._scrubber: BlockScrubber | None = None
        self._keeper: StepKeeper | None = None
        self._pending: Pending | None = None
        self._caches: list[torch.Tensor] = []
        self._blocks = 0
        self._warm = False

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        super().initialize_from_config(kv_cache_config)
        layers = self.vllm_config.compilation_config.static_forward_context
        names = [name for group in kv_cache_config.kv_cache_groups for name in group.layer_names]
        layout = self.cache_config.get_resolved_kv_cache_layout()
        if isinstance(layout, str):
            layout = worker_api().KVCacheLayout[layout]
        caches = {name: layers[name].kv_cache for name in names if name in layers}
        verify, stream = os.environ.get(SCRUB_VERIFY_ENV, ""), os.environ.get(SCRUB_STREAM_ENV, SCRUB_STREAMS[0])
        self._scrubber = make_scrubber(kv_cache_config, caches, layout, verify=verify, stream=stream)
        lasting = [keeps_blocks(group.kv_cache_spec) for group in kv_cache_config.kv_cache_groups]
        self._caches = [cache for cache in caches.values() for cache in (cache if isinstance(cache, (list, tuple)) else (cache,))]
        self._blocks = kv_cache_config.num_blocks
        self._keeper = StepKeeper(ShadowTable(kv_cache_config.num_blocks, lasting), self._scrubber, self._void_table)

    def compile_or_warm_up_model(self) -> Any:
        times = super().compile_or_warm_up_model()
        if self._scrubber is not None:
            self._scrubber.wipe()  # warm-up ran dummy prompts through blocks that count as clean
        self._warm = True
        return times

    def execute_model(self, scheduler_output: Any) -> Any:
        if not self._warm:
            return super().execute_model(scheduler_output)
        self._pending = self._prepare(scheduler_output)
        output = super().execute_model(scheduler_output)
        return None if output is None else self._acknowledged(output)  # None: sample_tokens follows

    def sample_tokens(self, grammar_output: Any) -> Any:
        output = super().sample_tokens(grammar_output)
        return output if self._pending is None or output is None else self._acknowledged(output)

    def sleep(self, level: int = 1) -> None:
        if self._scrubber is not None:
            self._scrubber.wipe()
        super().sleep(level)

    def wake_up(self, tags: list[str] | None = None) -> None:
        super().wake_up(tags)
        if self._scrubber is not None and (tags is None or "kv_cache" in tags):
            self._scrubber.wipe()

    def shutdown(self) -> None:
        scrubber, self._scrubber = self._scrubber, None
        if scrubber is not None:
            scrubber.wipe()
        super().shutdown()

    def nonzero_blocks(self, ids: list[int]) -> list[int]:
        """Which blocks hold something, read through the views that the layers use."""
        grouped = [cache.unflatten(0, (self._blocks, -1)) for cache in self._caches]  # kernels may count in parts of blocks
        return [block for block in ids if any(bool(cache[block].view(torch.uint8).any()) for cache in grouped)]

    def settle(self, pending: Pending, output: Any) -> Any:
        """`output` with its acknowledgement, once the zeroes are in memory. May run on the thread that fetches outputs."""
        try:
            return pending.settle(output)
        except Exception:
            self._end_if_others_wait()
            raise

    def _prepare(self, step: Any) -> Pending:
        try:
            if self._keeper is None:
                raise MissingAck("the worker has no KV cache to scrub: its engine started in an unknown order")
            with torch.inference_mode():
                return self._keeper.prepare(step)
        except Exception:
            self._end_if_others_wait()
            raise

    def _acknowledged(self, output: Any) -> Any:
        pending, self._pending = self._pending, None
        if pending is None:
            raise MissingAck("the worker made an output without a scrub order: its engine runs in an unknown order")
        if isinstance(output, _AsyncOutput) or self.device.type != "cpu":
            return AckedOutput(self, output, pending)
        return self.settle(pending, output)

    def _void_table(self, request: str, table: Table) -> None:
        runner = self.model_runner
        if self.use_v2_model_runner:
            runner.block_tables.append_block_ids(runner.req_states.req_id_to_index[request], table, overwrite=True)
            return
        state = runner.requests[request]
        state.block_ids = tuple(list(group) for group in table)
        if (row := runner.input_batch.req_id_to_index.get(request)) is not None:
            runner.input_batch.block_table.add_row(state.block_ids, row)

    def _end_if_others_wait(self) -> None:
        # Raising would leave the other ranks in this step's collective until a timeout. A process that is gone is seen by
        # the executor at once, and the engine ends: fail closed, and quickly.
        if self.parallel_config.world_size > 1:
            logger.critical("blockwarden: scrubbing failed on rank %d; this worker ends, and the engine with it", self.rank)
            os._exit(SCRUB_FAILED_STATUS)
