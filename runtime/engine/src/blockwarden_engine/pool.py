"""vLLM's block pool with tenants in it: the ledger decides, this class moves vLLM's block records accordingly.

vLLM asks its pool for blocks without saying for whom. So the manager opens a context (`serving`) around the two calls in which it
looks up or takes blocks for one request; outside of one there are no free blocks to take. Imports vLLM: it subclasses its pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from vllm.distributed.kv_events import AllBlocksCleared
from vllm.v1.core.block_pool import BlockHashToBlockMap, BlockPool

from .domains import Domain
from .errors import NotOwned, UnsupportedEngine
from .ledger import CACHED, IN_USE, Ledger
from .quotas import Quota

Block = Any
"""vLLM's KVCacheBlock."""


class _NoFreeQueue:
    """Stands where vLLM keeps its one queue of free blocks: code that reads it would hand out other tenants' blocks."""

    def __getattr__(self, name: str) -> NoReturn:
        raise UnsupportedEngine(f"free_block_queue.{name}: blocks are free to one tenant only, ask the pool for them")


class TenantBlockPool(BlockPool):
    """Blocks by owner. `blocks[i].ref_cnt > 0` exactly while the ledger says that block i is in use.

    Attributes:
        ledger: the accounting.
        serving: the trust domain for which blocks are looked up, taken or freed at this moment.
        settled: the request being served fits in the blocks that it has, so it is given none; decided by the scheduler.
        granted: (domain, id) of every block taken since `take_grants`, in order.
        recycled: ids taken with their own domain's old content since `take_grants`.
        foreign: (request id or None, block id) of blocks found in a table whose request does not own them.
        foreign_hits: prefix hits refused because the block is another domain's.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.free_block_queue = _NoFreeQueue()
        self.ledger = Ledger(self.num_gpu_blocks)
        self.serving: Domain | None = None
        self.settled = False
        self.granted: list[tuple[Domain, int]] = []
        self.recycled: list[int] = []
        self.foreign: list[tuple[str | None, int]] = []
        self.foreign_hits = 0

    # ---- what the manager asks -------------------------------------------------------------------------------------------

    def get_num_free_blocks(self) -> int:
        """Blocks that the request being served may take; without one, all that are not in use nor on their way to zero."""
        if self.settled:
            return 0
        if self.serving is not None:
            return self.ledger.allocatable(self.serving)
        return self.ledger.clean + self.ledger.cached

    def get_new_blocks(self, num_blocks: int) -> list[Block]:
        domain = self._domain("taken")
        taken = self.ledger.take(domain, num_blocks)
        ids = taken.fresh
        if taken.recycled:
            for block_id in taken.recycled:
                self._forget_hashes(block_id)
            self.recycled += taken.recycled
            ids = ids + taken.recycled
        blocks = [self.blocks[block_id] for block_id in ids]
        for block in blocks:
            block.ref_cnt = 1
            self.granted.append((domain, block.block_id))
            if self.metrics_collector:
                self.metrics_collector.on_block_allocated(block)
        return blocks

    def get_cached_block(self, block_hash: Any, kv_cache_group_ids: list[int]) -> list[Block] | None:
        blocks: list[Block] | None = super().get_cached_block(block_hash, kv_cache_group_ids)
        domains, serving = self.ledger.domains, self.serving
        if blocks is not None and any(domains[block.block_id] is not serving or serving is None for block in blocks):
            self.foreign_hits += 1
            return None
        return blocks

    def touch(self, blocks: Sequence[Block]) -> None:
        domain = self._domain("used")
        for block in blocks:
            if block.is_null:
                block.ref_cnt += 1
                continue
            if block.ref_cnt == 0:
                self.ledger.hit(domain, block.block_id)
            elif self.ledger.domains[block.block_id] is not domain:
                raise NotOwned(f"block {block.block_id} was used by a trust domain that does not own it")
            block.ref_cnt += 1
            if self.metrics_collector:
                self.metrics_collector.on_block_accessed(block)

    def free_blocks(self, ordered_blocks: Iterable[Block]) -> None:
        """Frees in eviction order. A block that the request being served does not own is left alone and noted."""
        domains, serving = self.ledger.domains, self.serving
        for block in ordered_blocks:
            if block.is_null:
                block.ref_cnt -= 1
                continue
            domain = domains[block.block_id]
            if domain is None or block.ref_cnt < 1 or (serving is not None and domain is not serving):
                self.foreign.append((None, block.block_id))
                continue
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self._release(block)

    def _release(self, block: Block) -> None:
        keep = self.enable_caching and block.block_hash is not None
        if not self.ledger.release(block.block_id, keep=keep) and block.block_hash is not None:
            self._forget_hashes(block.block_id)

    def cache_full_blocks(self, request: Any, blocks: list[Block], num_cached_blocks: int, num_full_blocks: int,
                          *args: Any, **kwargs: Any) -> None:  # fmt: skip
        """Hashes full blocks; none at all where one is not the request's own."""
        domains, serving = self.ledger.domains, request.trust_domain
        for block in blocks[num_cached_blocks:num_full_blocks]:
            if domains[block.block_id] is not serving and not block.is_null:
                self.foreign.append((request.request_id, block.block_id))
                return
        super().cache_full_blocks(request, blocks, num_cached_blocks, num_full_blocks, *args, **kwargs)

    def _maybe_evict_cached_block(self, block: Block) -> bool:
        """Drops a block's hashes, and its content where nobody uses it: vLLM calls this to evict single blocks."""
        evicted: bool = super()._maybe_evict_cached_block(block)
        if self.ledger.state(block.block_id) == CACHED:
            self.ledger.evict(block.block_id)
        return evicted

    def reset_prefix_cache(self, deferred: int = 0) -> bool:
        """Forgets every hash and all that is only cached. False while blocks are in use, but for `deferred` ones, whose
        requests are gone and whose last step is not done."""
        in_use = self.ledger.size - self.ledger.clean - self.ledger.cached - len(self.ledger.dirty) - self.ledger.scrubbing
        if in_use > deferred:
            return False
        self.cached_block_hash_to_block = BlockHashToBlockMap()
        self.cached_block_hashes_by_block.clear()
        for block in self.blocks:
            block.reset_hash()
        self.ledger.evict_all()
        if self.metrics_collector:
            self.metrics_collector.reset()
        if self.enable_kv_cache_events:
            self.kv_event_queue.append(AllBlocksCleared())
        return True

    def unpin_blocks(self, blocks: Iterable[Block], on_reuse: Callable[[Block], None]) -> NoReturn:
        raise UnsupportedEngine("a connector reads blocks after they are freed, and freed blocks are zeroed: run without it")

    def _domain(self, verb: str) -> Domain:
        if self.serving is None:
            raise NotOwned(f"blocks were {verb} outside of a request")
        return self.serving

    def _forget_hashes(self, block_id: int) -> None:
        super()._maybe_evict_cached_block(self.blocks[block_id])

    # ---- what the scheduler asks -----------------------------------------------------------------------------------------

    def make_room(self, domain: Domain, count: int) -> None:
        """See `Ledger.make_room`."""
        for block_id in self.ledger.make_room(domain, count):
            self._forget_hashes(block_id)

    def scrub_ahead(self) -> None:
        """See `Ledger.scrub_ahead`."""
        for block_id in self.ledger.scrub_ahead():
            self._forget_hashes(block_id)

    def apply_quotas(self, quotas: dict[str, Quota]) -> None:
        """See `Ledger.apply`."""
        for block_id in self.ledger.apply(quotas):
            self._forget_hashes(block_id)

    def take_grants(self) -> tuple[dict[int, list[int]], list[int]]:
        """(owner -> ids, recycled ids) of blocks taken since the last call that are still in use or cached by their taker."""
        domains, grants = self.ledger.domains, dict[int, list[int]]()
        for domain, block_id in self.granted:
            if domains[block_id] is domain:
                grants.setdefault(domain.owner, []).append(block_id)
        recycled = [block_id for block_id in self.recycled if domains[block_id] is not None]
        self.granted, self.recycled = [], []
        return grants, recycled

    def repair(self, domain: Domain, held: set[int]) -> int:
        """Frees what the domain has in use though no table nor deferred free (`held`) names it; how many. Walks over the pool."""
        lost = [block_id for block_id in self.ledger.held_by(domain) if block_id not in held]
        for block_id in lost:
            self.blocks[block_id].ref_cnt = 0
            self._forget_hashes(block_id)
            if self.ledger.state(block_id) == IN_USE:
                self.ledger.release(block_id, keep=False)
        return len(lost)
