"""Policies, keys and certificates that change under a running engine."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from blockwarden_core import layout
from blockwarden_core.keys import EngineKey, EngineKeys
from blockwarden_core.policy import TenantShare

PROMPT = "A block of memory that changes its owner is zero before anybody reads it. " * 6


def share(name: str, **fields: Any) -> TenantShare:
    return TenantShare(name=name, **{"guaranteed": "30%", "limit": "30%", "generation": 1, "floor": 1} | fields)


def test_a_raised_floor_retires_tokens_and_scrubs_their_blocks(engine: Any, policy_again: Any) -> None:
    old, new = policy_again.token("a", user="r"), policy_again.token("a", user="r", generation=2)
    assert engine.cached(old, PROMPT) == 0
    assert engine.cached(old, PROMPT) > 0
    version = policy_again.share(share("a", generation=2, floor=2), share("b"), share("c")).version
    report = engine.wait_for(
        lambda report: report.policy_version == version and all(t.stale_blocks == t.stale_requests == 0 for t in report.tenants)
    )
    assert next(tenant for tenant in report.tenants if tenant.name == "a").owned_blocks == 0
    assert engine.complete(old, PROMPT).json()["error"]["code"] == "salt_retired"
    assert engine.cached(new, PROMPT) == 0


def test_a_tenant_that_is_gone_from_the_policy_is_refused(engine: Any, policy_again: Any) -> None:
    version = policy_again.share(share("a"), share("b")).version
    engine.wait_for(lambda report: report.policy_version == version)
    assert engine.complete(policy_again.token("c"), "hi").json()["error"]["code"] == "tenant_unknown"
    assert engine.complete(policy_again.token("a"), "hi").status == 200


def test_broken_older_and_foreign_policies_leave_the_last_good_one(engine: Any, policy_again: Any) -> None:
    good = engine.report().policy_version
    sealed = json.loads((policy_again.root / layout.ENGINE_POLICY).read_text())
    for text in ("{", json.dumps(sealed | {"mac": "A" * 43})):
        policy_again.mount(layout.ENGINE_POLICY, text)
        report = engine.wait_for(lambda report: report.reload_error is not None)
        assert report.policy_version == good
        assert engine.complete(policy_again.token("a"), "hi").status == 200
    policy_again.share(share("a"), version=1)
    assert engine.wait_for(lambda report: "older" in (report.reload_error or "")).policy_version == good
    policy_again.policy = policy_again.policy.model_copy(update={"version": good})


def test_engine_keys_rotate_with_overlap(engine: Any, policy_again: Any) -> None:
    before = policy_again.token("a")
    engine.complete(before, PROMPT)
    assert (warm := engine.cached(before, PROMPT)) > 0
    fresh = EngineKey.model_validate({"id": "k2", "key": secrets.token_bytes(32)})
    policy_again.keys = EngineKeys(active="k2", keys=(*policy_again.keys.keys, fresh))
    policy_again.mount(layout.ENGINE_KEYS, policy_again.keys.text())
    version = policy_again.share(share("a"), share("b"), share("c")).version
    engine.wait_for(lambda report: report.policy_version == version)
    assert policy_again.token("a") != before, "the new key signs another token for the same salt"
    assert engine.cached(before, PROMPT) == engine.cached(policy_again.token("a"), PROMPT) == warm, (
        "blocks are hashed by salt alone"
    )
    policy_again.keys = EngineKeys(active="k2", keys=(fresh,))
    policy_again.mount(layout.ENGINE_KEYS, policy_again.keys.text())
    version = policy_again.share(share("a"), share("b"), share("c")).version
    engine.wait_for(lambda report: report.policy_version == version)
    assert engine.complete(before, "hi").json()["error"]["code"] == "salt_forged"
    assert engine.complete(policy_again.token("a"), "hi").status == 200


def test_a_renewed_certificate_is_served_without_a_restart(engine: Any, policy_again: Any) -> None:
    directory: Path = policy_again.root / layout.SERVER_TLS
    nonce = engine.attestation().boot_nonce

    def shown(port: int) -> int:
        connection = engine.connection(port)
        connection.connect()
        serial = x509.load_der_x509_certificate(connection.sock.getpeercert(binary_form=True)).serial_number
        connection.close()
        return serial

    policy_again.authority.issue(directory, ExtendedKeyUsageOID.SERVER_AUTH)
    wanted = x509.load_pem_x509_certificate((directory / layout.TLS_CERT).read_bytes()).serial_number
    engine.wait_for(lambda _: shown(engine.api_port) == shown(engine.internal_port) == wanted)
    assert engine.attestation().boot_nonce == nonce
