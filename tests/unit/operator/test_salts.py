"""Key material: made when missing, kept when there, and told apart when doubtful."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest

from blockwarden_core.keys import SaltKeyring, api_key_digest
from blockwarden_operator.errors import KeyMaterialError
from blockwarden_operator.salts import (
    KEYRING_FILE,
    Credential,
    encode_data,
    new_api_key,
    new_engine_keys,
    new_salt_secret,
    plan_api_keys,
    read_engine_keys,
    read_keyring,
    secret_data,
)

Entropy = Callable[[int], bytes]
KEY_A, KEY_B = b"a" * 40, b"b" * 40


def test_a_keyring_is_read_back_as_it_was_written(entropy: Entropy) -> None:
    keyring = SaltKeyring(secrets=(new_salt_secret(entropy),), generations={"acme": 1})
    manifest = {"data": encode_data({KEYRING_FILE: keyring.text()})}
    assert read_keyring(manifest) == keyring


@pytest.mark.parametrize(
    "manifest",
    [
        None,
        {},
        {"data": {}},
        {"data": {KEYRING_FILE: "***"}},
        {"data": encode_data({KEYRING_FILE: "{}"})},
        {"data": encode_data({KEYRING_FILE: b"\xff\xfe"})},
    ],
)
def test_a_missing_or_damaged_keyring_is_no_keyring(manifest: dict[str, object] | None) -> None:
    assert read_keyring(manifest) is None


def test_engine_keys_are_fresh_and_active(entropy: Entropy) -> None:
    one, two = new_engine_keys(entropy), new_engine_keys(entropy)
    assert one.signing_key != two.signing_key
    assert len(one.signing_key) == 32
    assert read_engine_keys({"data": encode_data({"keys.json": one.text()})}) == one
    assert read_engine_keys({"data": encode_data({"keys.json": "[]"})}) is None


def test_generated_api_keys_have_256_bits_and_our_prefix(entropy: Entropy) -> None:
    key = new_api_key(entropy)
    assert key.startswith("bw-")
    assert len(base64.urlsafe_b64decode(key[3:] + "=")) == 32


def test_a_field_that_is_not_base64_is_named_but_not_shown() -> None:
    with pytest.raises(KeyMaterialError, match=r"^data\.api-key: not base64$"):
        secret_data({"data": {"api-key": "sss!"}}, "api-key")


def test_digests_are_kept_by_subject_and_hold_no_key() -> None:
    keys, problems = plan_api_keys(
        [Credential("acme", "ann", "Secret a, key k", KEY_A), Credential("bob", None, "Secret b, key k", KEY_B)]
    )
    assert problems == []
    assert [(key.tenant, key.user, key.digest) for key in keys.keys] == [
        ("acme", "ann", api_key_digest(KEY_A.decode())),
        ("bob", None, api_key_digest(KEY_B.decode())),
    ]
    assert KEY_A.decode() not in keys.text()


def test_one_key_for_two_tenants_identifies_neither() -> None:
    keys, problems = plan_api_keys([Credential("acme", None, "Secret a", KEY_A), Credential("bob", None, "Secret b", KEY_A)])
    assert keys.keys == ()
    assert problems == ["Secret a and Secret b hold the same key, which identifies neither: give each its own"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "does not exist"),
        (b"short", "shorter than 32 characters"),
        (b"x" * 40 + b"\n", "outside printable ASCII"),
        ("ü".encode() * 20, "outside printable ASCII"),
    ],
)
def test_an_unfit_key_is_left_out_and_named(value: bytes | None, problem: str) -> None:
    keys, problems = plan_api_keys(
        [Credential("acme", None, "Secret a, key k", value), Credential("bob", None, "Secret b", KEY_B)]
    )
    assert [key.tenant for key in keys.keys] == ["bob"]
    assert len(problems) == 1
    assert problem in problems[0]
    assert "Secret a, key k" in problems[0]
