"""vLLM's worker with scrubbing, a shadow table and acknowledgements.

`--worker-cls blockwarden_engine.worker.BlockwardenWorker`. A subclass of whatever worker the platform has; works over both of
vLLM's model runners because it touches steps on their way in and outputs on their way out, and nothing in between.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from .compat import worker_api, worker_base
from .errors import MissingAck
from .guard_worker import ShadowTable, Table
from .installed import require_plugin
from .scrubber import BlockScrubber, make_scrubber
from .settings import SCRUB_VERIFY_ENV
from .steps import Pending, StepKeeper

logger = logging.getLogger("vllm.blockwarden")

RANK_FAILED_STATUS: Final = 70
"""Exit status of a worker whose step failed while other ranks wait for it in a collective."""

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
        self._warm = False

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        super().initialize_from_config(kv_cache_config)
        layers = self.vllm_config.compilation_config.static_forward_context
        names = [name for group in kv_cache_config.kv_cache_groups for name in group.layer_names]
        layout = self.cache_config.get_resolved_kv_cache_layout()
        if isinstance(layout, str):
            layout = worker_api().KVCacheLayout[layout]
        caches = {name: layers[name].kv_cache for name in names if name in layers}
        verify = os.environ.get(SCRUB_VERIFY_ENV, "")  # the launcher always sets it
        self._scrubber = make_scrubber(kv_cache_config, caches, layout, verify=verify)
        lasting = [isinstance(group.kv_cache_spec, worker_api().FullAttentionSpec) for group in kv_cache_config.kv_cache_groups]
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
        with self._ends_with_others():
            self._pending = self._prepare(scheduler_output)
            output = super().execute_model(scheduler_output)
            return None if output is None else self._acknowledged(output)  # None: sample_tokens follows

    def sample_tokens(self, grammar_output: Any) -> Any:
        with self._ends_with_others():
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

    def settle(self, pending: Pending, output: Any) -> Any:
        """`output` with its acknowledgement, once the zeroes are in memory. May run on the thread that fetches outputs."""
        with self._ends_with_others():
            return pending.settle(output)

    def _prepare(self, step: Any) -> Pending:
        if self._keeper is None:
            raise MissingAck("the worker has no KV cache to scrub: its engine started in an unknown order")
        with torch.inference_mode():
            return self._keeper.prepare(step)

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

    @contextmanager
    def _ends_with_others(self) -> Iterator[None]:
        """Ends this process if the step fails and there are other ranks.

        Raising would leave them in the step's collective until a timeout of minutes, and vLLM only logs what most ranks raise. A
        process that is gone is seen by the executor at once, and the engine ends: fail closed, and quickly.
        """
        try:
            yield
        except Exception:
            if self.parallel_config.world_size > 1:
                logger.critical(
                    "blockwarden: a step failed on rank %d; this worker ends, and the engine with it", self.rank, exc_info=True
                )
                os._exit(RANK_FAILED_STATUS)
            raise
