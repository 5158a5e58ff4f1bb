"""Salt tokens: what the engine accepts and what it refuses; a fixed vector shows any change of the format."""

from __future__ import annotations

import re

import pytest

from blockwarden_core.errors import ForgedToken, MalformedToken, MissingToken
from blockwarden_core.identity import Scope, Sharing
from blockwarden_core.salt import MAX_GENERATION, MAX_TOKEN_LENGTH, Token, derive_salt, frame, sign_token, verify_token

SECRET, KEY, OTHER_KEY = bytes(range(32)), bytes(range(32, 64)), bytes(32)
ACME = Sharing("acme", Scope.TENANT, ("acme",))


def token(**changes: object) -> str:
    salt = derive_salt(SECRET, deployment="uid", generation=3, sharing=ACME)
    fields = {"policy_uid": "uid", "tenant": "acme", "generation": 3, "salt": salt} | changes
    return sign_token(KEY, **fields)  # type: ignore[arg-type]


def test_a_token_is_what_it_was_in_the_first_release() -> None:
    # The vector was computed with the openssl command line, not with this code.
    assert frame("a", "bc") == b"\0\0\0\0\0\0\0\1a\0\0\0\0\0\0\0\2bc"
    assert token() == "v1.acme.3.RBEH6Zd6ZGFNZsQvtkMXrZg1ADOwkFso-YrXO85ETeA.hEcnbJYDCe0r1nKqeFS8Kg"


def test_a_signed_token_comes_back_as_tenant_generation_and_salt() -> None:
    verified = verify_token(token(), engine_keys=[OTHER_KEY, KEY], policy_uid="uid")
    assert verified == Token("acme", 3, token().split(".")[3])


def test_the_longest_token_fits_what_vllm_allows() -> None:
    longest = token(tenant="a" * 40, generation=MAX_GENERATION)
    assert len(longest) <= MAX_TOKEN_LENGTH
    assert verify_token(longest, engine_keys=[KEY], policy_uid="uid").generation == MAX_GENERATION


@pytest.mark.parametrize("missing", [None, ""])
def test_no_salt_is_missing(missing: object) -> None:
    with pytest.raises(MissingToken):
        verify_token(missing, engine_keys=[KEY], policy_uid="uid")


@pytest.mark.parametrize(
    "text",
    [
        7,
        ["v1"],
        "x",
        "acme",
        token() + "\n",
        " " + token(),
        token().replace("v1", "v2"),
        token().replace(".3.", ".03."),
        token().replace(".3.", ".0."),
        token().replace("acme", "Acme"),
        token() + "A",
        "v1." + "a" * 200,
    ],
)
def test_another_shape_is_malformed(text: object) -> None:
    with pytest.raises(MalformedToken):
        verify_token(text, engine_keys=[KEY], policy_uid="uid")


@pytest.mark.parametrize(
    "text",
    [
        token().replace("acme", "globex"),
        token().replace(".3.", ".4."),
        token()[:-1] + ("A" if token()[-1] != "A" else "B"),
        token(policy_uid="another"),
        sign_token(OTHER_KEY, policy_uid="uid", tenant="acme", generation=3, salt=token().split(".")[3]),
    ],
)
def test_a_token_changed_in_any_part_is_forged(text: str) -> None:
    with pytest.raises(ForgedToken):
        verify_token(text, engine_keys=[KEY], policy_uid="uid")


def test_without_keys_every_token_is_forged() -> None:
    with pytest.raises(ForgedToken):
        verify_token(token(), engine_keys=[], policy_uid="uid")


@pytest.mark.parametrize("secret", [b"", b"short", bytes(31)])
def test_short_secrets_are_refused(secret: bytes) -> None:
    with pytest.raises(ValueError, match="at least 32"):
        derive_salt(secret, deployment="uid", generation=1, sharing=ACME)
    with pytest.raises(ValueError, match="at least 32"):
        sign_token(secret, policy_uid="uid", tenant="acme", generation=1, salt="x" * 43)


def test_salts_of_many_tenants_are_legal_for_vllm_and_distinct() -> None:
    sharings = (Sharing("acme", Scope.USER, ("acme", f"usér-{n}")) for n in range(20_000))
    salts = {derive_salt(SECRET, deployment="uid", generation=1, sharing=sharing) for sharing in sharings}
    assert len(salts) == 20_000
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{43}", salt) for salt in salts)


def test_a_token_does_not_show_its_salt() -> None:
    verified = verify_token(token(), engine_keys=[KEY], policy_uid="uid")
    assert verified.salt not in repr(verified)
