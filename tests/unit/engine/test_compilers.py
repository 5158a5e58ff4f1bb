"""Compilers by trust scope: nothing shared, each tenant bounded by its share, whatever the others do."""

from __future__ import annotations

from typing import Any

import pytest

from blockwarden_engine.compilers import SCOPES, TenantCompilers

FLOORS = {"a": 1, "b": 1}


class Compiler:
    """Keeps a number of bytes."""

    def __init__(self, limit: int) -> None:
        self.limit, self.size = limit, 0

    def get_cache_size_bytes(self) -> int:
        return self.size

    def clear_cache(self) -> None:
        self.size = 0


@pytest.fixture
def compilers() -> TenantCompilers:
    return TenantCompilers(Compiler, 1000)


def compile_in(compilers: TenantCompilers, tenant: str, salt: str, size: int, generation: int = 1) -> Any:
    """As the manager does it: the scope's compiler, a compilation that leaves `size` bytes more, the bound."""
    compiler = compilers.of(tenant, generation, salt, FLOORS)
    compiler.size += size
    compilers.settle(tenant, FLOORS)
    return compiler


def test_each_scope_has_one_compiler_with_the_tenants_share_as_its_limit(compilers: TenantCompilers) -> None:
    first = compile_in(compilers, "a", "s1", 10)
    assert compile_in(compilers, "a", "s1", 0) is first
    others = [compile_in(compilers, *scope, 0) for scope in (("a", "s2"), ("b", "s1"))]
    assert len({id(compiler) for compiler in (first, *others)}) == 3
    assert first.limit == 500


def test_a_tenant_that_keeps_too_much_loses_its_oldest_scope_and_nobody_elses(compilers: TenantCompilers) -> None:
    compile_in(compilers, "b", "s", 500)
    for number in range(100):
        compile_in(compilers, "a", f"s{number}", 200)
        assert compilers.kept("a") <= 500
        assert compilers.kept("b") == 500
    assert compilers.kept("a") == 400


def test_a_grammar_larger_than_the_share_is_not_kept(compilers: TenantCompilers) -> None:
    compile_in(compilers, "a", "s", 501)
    assert compilers.kept("a") == 0


def test_a_used_scope_stays_longer(compilers: TenantCompilers) -> None:
    kept = compile_in(compilers, "a", "used", 200)
    compile_in(compilers, "a", "idle", 200)
    compile_in(compilers, "a", "used", 0)
    compile_in(compilers, "a", "new", 200)
    assert compile_in(compilers, "a", "used", 0) is kept


def test_scopes_that_have_compiled_nothing_do_not_pile_up(compilers: TenantCompilers) -> None:
    kept = compile_in(compilers, "a", "kept", 10)
    for number in range(10 * SCOPES):
        compile_in(compilers, "a", f"s{number}", 0)
        assert compile_in(compilers, "a", "kept", 0) is kept
    assert len(compilers._scopes["a"]) == SCOPES


def test_retired_generations_and_tenants_that_are_gone_are_dropped(compilers: TenantCompilers) -> None:
    compile_in(compilers, "a", "s", 10)
    compile_in(compilers, "b", "s", 10)
    compilers.of("a", 2, "t", {"a": 2})
    assert (compilers.kept("a"), compilers.kept("b")) == (0, 0)


def test_without_a_budget_nothing_is_kept() -> None:
    compilers = TenantCompilers(Compiler, 0)
    compile_in(compilers, "a", "s", 1)
    assert compilers.kept("a") == 0
