"""The subclass of vLLM's block pool under the same rules, and the same broken twins, as the pure ledger."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest
from hypothesis import seed, settings
from hypothesis.stateful import run_state_machine_as_test

from blockwarden_engine.domains import Domain
from blockwarden_engine.errors import LedgerError
from blockwarden_engine.ledger import Ledger
from blockwarden_engine.quotas import Quota

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


class PoolSubject:
    """A TenantBlockPool driven as vLLM's manager drives it."""

    def __init__(self, ledger: Ledger) -> None:
        from blockwarden_engine.pool import TenantBlockPool

        self.pool = TenantBlockPool(ledger.size + 1, enable_caching=True, hash_block_size=16)
        self.pool.ledger = self.ledger = ledger

    def allocate(self, domain: Domain, count: int) -> tuple[list[int], list[int]]:
        self.pool.serving, self.pool.recycled = domain, []
        blocks = self.pool.get_new_blocks(count)
        assert all(block.ref_cnt == 1 and block.block_hash is None for block in blocks)
        return [block.block_id for block in blocks], self.pool.recycled

    def publish(self, block: int, key: int) -> None:
        from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

        self.pool._insert_block_hash(make_block_hash_with_group_id(self._hash(key), 0), self.pool.blocks[block], num_tokens=16)

    def lookup(self, domain: Domain, key: int) -> int | None:
        from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

        self.pool.serving = domain
        offered = self.pool.get_cached_block(self._hash(key), [0])
        there = self.pool.cached_block_hash_to_block.get_one_block(make_block_hash_with_group_id(self._hash(key), 0))
        own = there is not None and self.ledger.domains[there.block_id] is domain
        assert (offered is not None) == own, "a hit is offered to the block's own trust domain, and to nobody else"
        return None if there is None else int(there.block_id)

    def use(self, domain: Domain, block: int) -> None:
        self.pool.serving = domain
        self.pool.touch([self.pool.blocks[block]])

    def free(self, domain: Domain, blocks: list[int]) -> None:
        self.pool.serving = domain
        self.pool.free_blocks([self.pool.blocks[block] for block in blocks])
        assert not self.pool.foreign

    def evict(self, block: int) -> None:
        self.pool.evict_blocks({block})

    def reset(self, deferred: int) -> bool:
        return self.pool.reset_prefix_cache(deferred)

    def make_room(self, domain: Domain, count: int) -> None:
        self.pool.make_room(domain, count)

    def apply(self, quotas: Mapping[str, Quota], draining: Mapping[str, Quota]) -> None:
        self.pool.apply_quotas(quotas, draining)

    def references(self, block: int) -> int:
        return int(self.pool.blocks[block].ref_cnt)

    def _hash(self, key: int) -> Any:
        return key.to_bytes(32, "big")


def machine(rules: ModuleType, parts: Any, seed_of_round: int = 0) -> Any:
    return seed(seed_of_round)(lambda: rules.PoolMachine(lambda cls, blocks: PoolSubject(cls(blocks)), parts))


@pytest.mark.usefixtures("base_config")
def test_the_pool_keeps_its_invariants(rules: ModuleType, world: ModuleType) -> None:
    """Fewer examples than the pure ledger's: the rules are the same, and only vLLM's side of the pool is new here."""
    run_state_machine_as_test(machine(rules, world.Parts()), settings=settings(world.profile().settings, max_examples=120))


@pytest.mark.usefixtures("base_config")
def test_a_planted_bug_in_the_pool_is_caught(rules: ModuleType, world: ModuleType, twin: Any) -> None:
    with pytest.raises((AssertionError, LedgerError)):
        run_state_machine_as_test(machine(rules, twin), settings=world.TWIN)


@pytest.mark.usefixtures("base_config")
def test_nothing_hands_out_blocks_beside_the_ledger() -> None:
    from blockwarden_engine.errors import NotOwned, UnsupportedEngine

    pool = PoolSubject(Ledger(8)).pool
    with pytest.raises(UnsupportedEngine):
        pool.free_block_queue.popleft()
    with pytest.raises(UnsupportedEngine):
        pool.unpin_blocks([], lambda block: None)
    with pytest.raises(NotOwned):
        pool.get_new_blocks(1)
