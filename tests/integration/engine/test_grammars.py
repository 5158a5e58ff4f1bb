"""Grammars of structured output on a live engine: one tenant's schema compiles nothing for another, and pushes nothing out."""

from __future__ import annotations

import json
from typing import Any

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "pattern": "^[a-z]{2,9}$"}}, "required": ["name"]}
KEPT = """
compilers = core.structured_output_manager._compilers
result = {name: compilers.kept(name) for name in "abc"}
"""
HITS = """
from blockwarden_engine.admission import process_admission
compilers = core.structured_output_manager._compilers
floors = {share.name: share.floor for share in process_admission().policy.tenants}
result = {tenant: compilers.of(tenant, 1, salt, floors).get_cache_size_bytes() for tenant, salt in SCOPES}
"""


def constrained(engine: Any, token: str, **changes: Any) -> None:
    answer = engine.complete(token, "a name: ", max_tokens=40, structured_outputs={"json": json.dumps(SCHEMA | changes)})
    assert answer.status == 200, answer.body


def test_a_schema_is_kept_for_the_trust_scope_that_sent_it(engine: Any) -> None:
    constrained(engine, engine.deployment.token("a"))
    kept = engine.core(KEPT)
    assert kept["a"] > 0
    assert kept["b"] == kept["c"] == 0
    constrained(engine, engine.deployment.token("a"))
    assert engine.core(KEPT) == kept, "the same scope has it already"
    constrained(engine, engine.deployment.token("b"))
    assert engine.core(KEPT)["b"] > 0


def test_two_users_of_one_tenant_have_two_compilers(engine: Any) -> None:
    tokens = {user: engine.deployment.token("c", user=user) for user in ("one", "two")}
    constrained(engine, tokens["one"], title="of user one")
    scopes = [("c", tokens["one"].split(".")[3])]
    (first,) = engine.core(f"SCOPES = {scopes!r}\n{HITS}").values()
    scopes = [("c", tokens["two"].split(".")[3])]
    (second,) = engine.core(f"SCOPES = {scopes!r}\n{HITS}").values()
    assert first > 0
    assert second == 0


def test_vllms_own_compiler_keeps_nothing_of_tenants(engine: Any) -> None:
    size = "result = core.structured_output_manager.backend.compiler.get_cache_size_bytes()"
    constrained(engine, engine.deployment.token("a"), title="one")
    before = engine.core(size)
    constrained(engine, engine.deployment.token("a"), title="another")
    assert engine.core(size) == before
