"""The pure ledger through any order of events; and that the machine sees each way of getting it wrong."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis.stateful import run_state_machine_as_test

from blockwarden_engine.ledger import Ledger

pytestmark = pytest.mark.timeout(600)


def test_the_ledger_keeps_its_invariants(rules: ModuleType) -> None:
    run_state_machine_as_test(rules.with_ledger(Ledger), settings=rules.THOROUGH)  # raises the first invariant that breaks


def test_a_broken_ledger_is_caught(rules: ModuleType, twin: type[Ledger]) -> None:
    with pytest.raises(AssertionError):
        run_state_machine_as_test(rules.with_ledger(twin), settings=rules.TWIN)
