"""How many blocks a request needs, asked of vLLM's own managers before vLLM takes them.

vLLM's scheduler answers a failed allocation by preempting whoever is last and by stopping the queue, whoever waits in it. So the
tenants' scheduler asks first, with the numbers that vLLM itself will use, and lets nobody through whose allocation would fail.
Knows vLLM's manager by its methods; imports nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .ledger import Ledger
from .manager import TenantKVCacheManager


class Fit:
    """Block needs of requests in one engine."""

    def __init__(self, manager: TenantKVCacheManager, *, lookahead: int, speculative: int, max_model_len: int) -> None:
        """Args:
        lookahead: slots that each running request needs beyond its tokens.
        speculative: draft tokens per request and step.
        max_model_len: the longest sequence, in tokens.
        """
        self._manager, self._lookahead, self._max_model_len = manager, lookahead, max_model_len
        self._ahead = lookahead + speculative + 1
        self._coordinator = manager.coordinator
        self._sizes = [single.block_size for single in self._coordinator.single_type_managers]
        self._unit = self._coordinator.scheduler_block_size

    @property
    def ledger(self) -> Ledger:
        return self._manager.block_pool.ledger

    def blocks_for(self, tokens: int) -> int:
        """Blocks of a sequence of `tokens` tokens that shares none, at most."""
        return sum(-(-tokens // size) for size in self._sizes)

    def tokens_in(self, blocks: int) -> int:
        """Tokens of the longest sequence that fits in `blocks` blocks, slots ahead included."""
        per_unit = sum(self._unit // size for size in self._sizes)
        return max(0, blocks // per_unit * self._unit - (self._ahead - 1))

    def only_table(self) -> Mapping[str, Sequence[Any]] | None:
        """Request id -> blocks where there is one cache group, so that the length of a table tells its room.

        A request whose blocks slide out of a window keeps null blocks in their places, so positions count there too.
        """
        managers = self._coordinator.single_type_managers
        return managers[0].req_to_blocks if len(managers) == 1 else None

    def running_need(self, request: Any, tokens: int) -> int:
        """Blocks that `tokens` more tokens of a running request take."""
        computed = request.num_computed_tokens
        return self._need(request, computed + tokens, self._manager.empty_kv_cache_blocks.blocks, computed)

    def waiting_shortage(self, request: Any) -> int:
        """0 if a waiting request can start now and its whole sequence so far fits; else how many blocks it needs in all."""
        ledger, domain = self.ledger, request.trust_domain
        free, margin = ledger.allocatable(domain), self._manager.watermark_blocks
        tokens = min(request.num_tokens + self._ahead, self._max_model_len)
        if free >= self.blocks_for(tokens) + len(self._sizes) + margin:
            return 0
        blocks, computed = self._manager.empty_kv_cache_blocks.blocks, request.num_computed_tokens
        if computed == 0:
            hit, computed, *_ = self._manager.get_computed_blocks(request)
            blocks = hit.blocks
        need = self._need(request, max(tokens - self._lookahead, request.num_tokens), blocks, computed) + margin
        return 0 if need <= free else need

    def _need(self, request: Any, tokens: int, blocks: Any, computed: int) -> int:
        need: int = self._coordinator.get_num_blocks_to_allocate(
            request_id=request.request_id,
            num_tokens=min(tokens + self._lookahead, self._max_model_len),
            new_computed_blocks=blocks,
            num_encoder_tokens=0,
            total_computed_tokens=computed,
            num_local_computed_tokens=computed,
            num_tokens_main_model=tokens,
            prefill_end=max(request.num_prompt_tokens, request.num_tokens - 1),
        )
        return need
