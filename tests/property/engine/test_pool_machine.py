"""The pure ledger through any order of events; and that the machine sees each way of getting it wrong."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis.stateful import run_state_machine_as_test

from blockwarden_engine.domains import Domain
from blockwarden_engine.errors import NotOwned
from blockwarden_engine.ledger import CACHED, Ledger
from blockwarden_engine.quotas import Quota

pytestmark = pytest.mark.timeout(600)


class LedgerSubject:
    """The pure ledger with a reference count, which in an engine is vLLM's."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._references = [0] * (ledger.size + 1)
        self._keys: dict[int, int] = {}

    def allocate(self, domain: Domain, count: int) -> tuple[list[int], list[int]]:
        taken = self.ledger.take(domain, count)
        for block in (blocks := taken.fresh + taken.recycled):
            self._references[block] += 1
            self._keys.pop(block, None)
        return blocks, taken.recycled

    def publish(self, block: int, key: int) -> None:
        self._keys[block] = key

    def lookup(self, domain: Domain, key: int) -> int | None:
        return next((block for block, published in self._keys.items() if published == key), None)

    def use(self, domain: Domain, block: int) -> None:
        if not self._references[block]:
            self.ledger.hit(domain, block)
        elif self.ledger.domains[block] is not domain:
            raise NotOwned("in use by another trust domain")
        self._references[block] += 1

    def free(self, domain: Domain, blocks: list[int]) -> None:
        for block in blocks:
            self._references[block] -= 1
            if not self._references[block] and not self.ledger.release(block, keep=block in self._keys):
                self._keys.pop(block, None)

    def evict(self, block: int) -> None:
        self._keys.pop(block, None)
        if self.ledger.state(block) == CACHED:
            self.ledger.evict(block)

    def make_room(self, domain: Domain, count: int) -> None:
        self._forget(self.ledger.make_room(domain, count))

    def apply(self, quotas: dict[str, Quota]) -> None:
        self._forget(self.ledger.apply(quotas))

    def references(self, block: int) -> int:
        return self._references[block]

    def _forget(self, blocks: list[int]) -> None:
        for block in blocks:
            self._keys.pop(block, None)


def machine(rules: ModuleType, cls: type[Ledger]) -> Any:
    return lambda: rules.PoolMachine(lambda blocks: LedgerSubject(cls(blocks)))


def test_the_ledger_keeps_its_invariants(rules: ModuleType) -> None:
    run_state_machine_as_test(machine(rules, Ledger), settings=rules.THOROUGH)  # raises the first invariant that breaks


def test_a_broken_ledger_is_caught(rules: ModuleType, twin: type[Ledger]) -> None:
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine(rules, twin), settings=rules.TWIN)
