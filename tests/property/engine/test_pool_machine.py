"""The pure ledger, with quotas, departures and caps, through any order of events; and that the machine sees each way of getting
it wrong (the planted bugs are listed in `planted_bugs.py`).

`make test` takes 20,000 steps, `make nightly` 1,000,000 from seeds of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest
from hypothesis import seed
from hypothesis.stateful import run_state_machine_as_test

from blockwarden_engine.domains import Domain
from blockwarden_engine.errors import LedgerError, NotOwned
from blockwarden_engine.ledger import CACHED, Ledger
from blockwarden_engine.quotas import Quota

pytestmark = pytest.mark.timeout(3 * 3600)


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

    def reset(self, deferred: int) -> bool:
        if self.ledger.in_use > deferred:
            return False
        self._keys.clear()
        self.ledger.evict_all()
        return True

    def make_room(self, domain: Domain, count: int) -> None:
        self._forget(self.ledger.make_room(domain, count))

    def apply(self, quotas: Mapping[str, Quota], draining: Mapping[str, Quota]) -> None:
        self._forget(self.ledger.apply(quotas, draining))

    def references(self, block: int) -> int:
        return self._references[block]

    def _forget(self, blocks: list[int]) -> None:
        for block in blocks:
            self._keys.pop(block, None)


def machine(rules: ModuleType, parts: Any, seed_of_round: int = 0) -> Any:
    return seed(seed_of_round)(lambda: rules.PoolMachine(lambda cls, blocks: LedgerSubject(cls(blocks)), parts))


def test_the_ledger_keeps_its_invariants(rules: ModuleType, world: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    profile, started, seed_of_round = world.profile(), time.monotonic(), world.first_seed()
    world.PoolWorld.taken = 0
    while world.PoolWorld.taken < profile.steps:
        before = world.PoolWorld.taken
        run_state_machine_as_test(machine(rules, world.Parts(), seed_of_round), settings=profile.settings)
        assert world.PoolWorld.taken > before + profile.settings.max_examples, "a round of examples without steps"
        with capsys.disabled():
            said = f"seed {seed_of_round}, {world.PoolWorld.taken} steps after {time.monotonic() - started:.0f} s"
            print(f"\nstate machine: {said}", flush=True)
        seed_of_round += 1


def test_a_planted_bug_is_caught(rules: ModuleType, world: ModuleType, twin: Any) -> None:
    with pytest.raises((AssertionError, LedgerError)):  # the machine sees it, or the ledger refuses to go on
        run_state_machine_as_test(machine(rules, twin), settings=world.TWIN)


def test_at_least_ten_bugs_are_planted() -> None:
    import blockwarden_tests_planted_bugs as planted

    assert len(planted.TWINS) >= 10
