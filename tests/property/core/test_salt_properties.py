"""Injective framing, unforgeable tokens, scopes that never widen: each property has a broken twin that must be caught."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blockwarden_core.errors import ScopeError, TokenError
from blockwarden_core.identity import Scope, Sharing, Subject, narrow, sharing_for
from blockwarden_core.salt import derive_salt, frame, sign_token, verify_token

KEY, SECRET = bytes(range(32)), bytes(range(32, 64))
parts = st.lists(st.text(max_size=6), max_size=4)
ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
subjects = st.builds(Subject, st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True), st.none() | ids)
scopes = st.sampled_from(Scope)


def check_injective(framing: Callable[..., bytes]) -> None:
    @given(parts, parts)
    @example(["org_1", "2345"], ["org_12345"])
    @example(["a|b"], ["a", "b"])
    def holds(left: list[str], right: list[str]) -> None:
        assert (framing(*left) == framing(*right)) == (left == right)

    holds()


def test_framing_is_injective() -> None:
    check_injective(frame)


def test_the_reference_framing_is_caught() -> None:
    with pytest.raises(AssertionError):
        check_injective(lambda *fields: "|".join(fields).encode())


@given(st.text(max_size=140))
def test_no_text_is_accepted_that_was_not_signed(text: str) -> None:
    with pytest.raises(TokenError):
        verify_token(text, engine_keys=[KEY], policy_uid="uid")


@given(st.integers(0, 200), st.characters(codec="ascii"))
def test_a_token_with_any_character_changed_is_refused(position: int, character: str) -> None:
    salt = derive_salt(SECRET, deployment="uid", generation=1, sharing=Sharing("acme", Scope.TENANT, ("acme",)))
    token = sign_token(KEY, policy_uid="uid", tenant="acme", generation=1, salt=salt)
    position %= len(token)
    changed = token[:position] + character + token[position + 1 :]
    if changed == token:
        assert verify_token(changed, engine_keys=[KEY], policy_uid="uid").salt == salt
    else:
        with pytest.raises(TokenError):
            verify_token(changed, engine_keys=[KEY], policy_uid="uid")


@given(scopes, st.none() | scopes, st.none() | ids)
def test_a_client_never_gets_a_wider_scope(granted: Scope, wanted: Scope | None, session: str | None) -> None:
    try:
        scope = narrow(granted, wanted, session=session)
    except ScopeError:
        assert wanted is not None
    else:
        assert scope.width <= granted.width


def check_no_shared_domain(domain: Callable[..., Sharing]) -> None:
    """No header of one subject reaches a trust domain of another, but where the policy shares by scope None or Tenant."""

    @given(subjects, subjects, scopes, st.none() | ids, st.none() | ids)
    @example(Subject("a", "joe"), Subject("a", None), Scope.SESSION, "1", "joe/1")
    @example(Subject("a", "joe"), Subject("a", "jo"), Scope.SESSION, "1", "e1")
    def holds(one: Subject, other: Subject, scope: Scope, session: str | None, session2: str | None) -> None:
        if one == other:
            return
        try:
            left = domain(one, granted=scope, scope=scope, session=session, nonce="0" * 32)
            right = domain(other, granted=scope, scope=scope, session=session2, nonce="1" * 32)
        except ScopeError:
            return
        shared = left == right
        assert shared == (scope is Scope.NONE or (scope is Scope.TENANT and one.tenant == other.tenant))

    holds()


def test_two_subjects_share_only_what_the_scope_shares() -> None:
    check_no_shared_domain(sharing_for)


def test_ids_that_are_joined_instead_of_framed_are_caught() -> None:
    def joined(subject: Subject, **request: object) -> Sharing:
        sharing = sharing_for(subject, **request)  # type: ignore[arg-type]
        return Sharing(sharing.tenant, sharing.scope, ("".join(sharing.ids),))

    with pytest.raises(AssertionError):
        check_no_shared_domain(joined)
