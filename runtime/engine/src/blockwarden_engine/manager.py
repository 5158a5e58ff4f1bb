"""vLLM's KV-cache manager, telling the pool for which trust domain it looks up, takes and frees blocks.

Imports vLLM: it subclasses its manager. Runs once per scheduled request and step, so it is plain attribute setting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.request import RequestStatus

from .pool import Block, TenantBlockPool


class TenantKVCacheManager(KVCacheManager):
    """Every request that it sees carries `trust_domain`; one without gets no blocks and no hits.

    Attributes:
        count_deferred: how many blocks wait for their last step before they are freed; set by the scheduler.
        failed: the running request whose allocation failed last, until one succeeds.
    """

    block_pool: TenantBlockPool
    count_deferred: Callable[[], int] = staticmethod(lambda: 0)
    failed: Any = None

    def get_computed_blocks(self, request: Any) -> Any:
        self.block_pool.serving = request.trust_domain
        try:
            return super().get_computed_blocks(request)
        finally:
            self.block_pool.serving = None

    def get_computed_blocks_for_connector(self, request: Any) -> Any:
        self.block_pool.serving = request.trust_domain
        try:
            return super().get_computed_blocks_for_connector(request)
        finally:
            self.block_pool.serving = None

    def allocate_slots(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        pool = self.block_pool
        pool.serving = request.trust_domain
        try:
            blocks = super().allocate_slots(request, *args, **kwargs)
        finally:
            pool.serving, pool.settled = None, False
        if blocks is None or self.failed is not None:
            self.failed = request if blocks is None and request.status == RequestStatus.RUNNING else None
        return blocks

    def free(self, request: Any) -> None:
        self.block_pool.serving = request.trust_domain
        try:
            super().free(request)
        finally:
            self.block_pool.serving = None

    def pop_blocks_for_free(self, request: Any) -> list[Block]:
        domains, domain = self.block_pool.ledger.domains, request.trust_domain
        blocks: list[Block] = super().pop_blocks_for_free(request)
        own = [block for block in blocks if block.is_null or domains[block.block_id] is domain]
        if len(own) < len(blocks):
            self.block_pool.foreign += ((None, block.block_id) for block in blocks if block not in own)
        return own

    def reset_prefix_cache(self) -> bool:
        if not self.block_pool.reset_prefix_cache(self.count_deferred()):
            return False
        if self.log_stats and self.prefix_cache_stats is not None:
            self.prefix_cache_stats.reset = True
        return True
