"""Mounted documents: strict, stable, and silent about their secrets."""

from __future__ import annotations

import json

import pytest

from blockwarden_core.errors import DocumentError, RetiredToken, StaleDocument, UnknownTenant, UnsealedDocument
from blockwarden_core.keys import ApiKeys, EngineKey, EngineKeys, SaltKeyring, SaltSecret, api_key_digest
from blockwarden_core.policy import EnginePolicy, TenantShare, blocks_of, open_policy, seal_policy
from blockwarden_core.salt import MAX_GENERATION, Token
from blockwarden_core.sealed import Sealed, open_sealed, seal

KEYS = EngineKeys(active="k2", keys=(EngineKey(id="k1", key=bytes(32)), EngineKey(id="k2", key=bytes(range(32)))))
FOREIGN_KEYS = EngineKeys(active="k1", keys=(EngineKey(id="k1", key=b"x" * 32),))


def policy(version: int = 5, *, uid: str = "uid", floor: int = 2) -> EnginePolicy:
    share = TenantShare(name="acme", guaranteed="40%", limit="50%", generation=3, floor=floor)
    return EnginePolicy(policy_uid=uid, version=version, tenants=(share,))


def test_documents_read_what_they_write() -> None:
    keyring = SaltKeyring(secrets=(SaltSecret(id="a", secret=bytes(32)),), generations={"acme": 1})
    assert SaltKeyring.read(keyring.text()) == keyring
    assert EngineKeys.read(KEYS.text()) == KEYS
    assert EnginePolicy.read(policy().text()) == policy()


def test_the_wire_form_is_camel_case_and_sorted() -> None:
    text = policy().text()
    assert '"policyUid":"uid"' in text
    assert list(json.loads(text)) == sorted(json.loads(text))


def test_an_unknown_field_is_refused_by_its_path() -> None:
    with pytest.raises(DocumentError, match=r"ApiKeys: keys\.0\.admin: Extra inputs"):
        ApiKeys.read('{"keys":[{"digest":"%s","tenant":"acme","admin":true}]}' % ("0" * 64))


def test_a_bad_secret_is_named_and_not_shown() -> None:
    with pytest.raises(DocumentError) as refused:
        EngineKeys.read('{"active":"a","keys":[{"id":"a","key":"hunter2"}]}')
    assert "keys.0.key" in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_key_material_does_not_show_in_a_repr() -> None:
    secret = b"canary-canary-canary-canary-canary"
    keys = EngineKeys(active="a", keys=(EngineKey(id="a", key=secret),))
    assert "canary-" not in repr(keys) + str(keys)
    assert keys.signing_key == secret


def test_the_active_key_must_exist() -> None:
    with pytest.raises(DocumentError, match="active names no key"):
        EngineKeys.read(KEYS.text().replace('"active":"k2"', '"active":"k3"'))


def test_an_api_key_is_kept_as_its_sha256() -> None:
    assert api_key_digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_sealed_policy_opens_under_any_accepted_key() -> None:
    first_key_signs = KEYS.model_copy(update={"active": "k1"})
    assert open_policy(seal_policy(policy(), first_key_signs), KEYS, policy_uid="uid", in_force=None) == policy()


def test_a_policy_that_is_edited_or_foreign_does_not_open() -> None:
    sealed = seal_policy(policy(), KEYS)
    odd = Sealed.read(sealed).model_copy(update={"mac": "\u00e9" * 43}).text()
    for text in (sealed.replace("40%", "90%"), seal_policy(policy(), FOREIGN_KEYS), odd):
        with pytest.raises(UnsealedDocument):
            open_policy(text, KEYS, policy_uid="uid", in_force=None)
    with pytest.raises(StaleDocument, match="another TenantPolicy"):
        open_policy(seal_policy(policy(uid="other"), KEYS), KEYS, policy_uid="uid", in_force=None)


def test_a_seal_is_of_one_kind() -> None:
    sealed = seal("accepted", "x", KEYS)
    assert open_sealed("accepted", sealed, KEYS) == "x"
    assert seal("accepted", "x", KEYS) == sealed
    for kind, text in (
        ("policy", sealed),
        ("accepted", seal_policy(policy(), KEYS)),
        ("accepted", seal("accepted", "x", FOREIGN_KEYS)),
    ):
        with pytest.raises(UnsealedDocument, match=f"^{kind}: not sealed under"):
            open_sealed(kind, text, KEYS)


def test_a_version_only_rises() -> None:
    with pytest.raises(StaleDocument, match="version 4 is older than 5"):
        open_policy(seal_policy(policy(4), KEYS), KEYS, policy_uid="uid", in_force=policy(5))
    with pytest.raises(StaleDocument, match="other contents"):
        open_policy(seal_policy(policy(5, floor=1), KEYS), KEYS, policy_uid="uid", in_force=policy(5))
    assert open_policy(seal_policy(policy(5), KEYS), KEYS, policy_uid="uid", in_force=policy(5)) == policy(5)


def test_admission_is_by_tenant_and_floor() -> None:
    assert policy().admit(Token("acme", 2, "s")).name == "acme"
    with pytest.raises(RetiredToken):
        policy().admit(Token("acme", 1, "s"))
    with pytest.raises(UnknownTenant):
        policy().admit(Token("globex", 3, "s"))


def test_names_are_unique_and_the_floor_is_not_ahead() -> None:
    with pytest.raises(DocumentError, match="name twice"):
        EnginePolicy.read(json.dumps({"policyUid": "u", "version": 1, "tenants": [json.loads(policy().tenants[0].text())] * 2}))
    with pytest.raises(ValueError, match="floor is above generation"):
        policy(floor=4)


def test_a_generation_always_fits_into_a_token() -> None:
    too_high = json.loads(policy().text())
    too_high["tenants"][0]["generation"] = MAX_GENERATION + 1
    with pytest.raises(DocumentError, match="generation"):
        EnginePolicy.read(json.dumps(too_high))
    secret = {"id": "s1", "secret": bytes(32)}
    with pytest.raises(ValueError, match="generations"):
        SaltKeyring.model_validate({"secrets": [secret], "generations": {"acme": MAX_GENERATION + 1}})
    assert SaltKeyring.model_validate({"secrets": [secret], "generations": {"acme": MAX_GENERATION}})


def test_amounts_are_blocks_or_percent_of_the_pool() -> None:
    assert [blocks_of(amount, 250) for amount in (7, "0%", "33%", "100%")] == [7, 0, 82, 250]
