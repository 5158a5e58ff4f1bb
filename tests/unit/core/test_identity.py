"""Scopes: who may share with whom, and what a client may ask for."""

from __future__ import annotations

import pytest

from blockwarden_core.errors import ScopeError
from blockwarden_core.identity import SHARED_TENANT, Scope, Sharing, Subject, narrow, sharing_for

JOE = Subject("acme", "joe")
ACME = Subject("acme")


def share(subject: Subject, scope: Scope, *, granted: Scope | None = None, session: str | None = None) -> Sharing:
    return sharing_for(subject, granted=granted or scope, scope=scope, session=session, nonce="n" * 32)


def test_scopes_run_from_the_deployment_to_the_request() -> None:
    widths = [scope.width for scope in (Scope.NONE, Scope.TENANT, Scope.USER, Scope.SESSION, Scope.REQUEST)]
    assert widths == [4, 3, 2, 1, 0]


def test_without_a_wish_the_granted_scope_is_in_force() -> None:
    assert narrow(Scope.USER, None, session=None) is Scope.USER


def test_a_session_id_alone_narrows_to_the_session() -> None:
    assert narrow(Scope.TENANT, None, session="s1") is Scope.SESSION
    assert narrow(Scope.REQUEST, None, session="s1") is Scope.REQUEST


def test_a_client_may_narrow() -> None:
    assert narrow(Scope.NONE, Scope.REQUEST, session=None) is Scope.REQUEST


def test_a_client_may_not_widen() -> None:
    with pytest.raises(ScopeError, match="wider than the granted scope User"):
        narrow(Scope.USER, Scope.TENANT, session=None)


def test_scope_session_needs_a_session_id() -> None:
    with pytest.raises(ScopeError, match="X-Blockwarden-Session"):
        narrow(Scope.TENANT, Scope.SESSION, session=None)


def test_scope_none_is_one_domain_for_everybody() -> None:
    assert share(JOE, Scope.NONE) == share(Subject("globex"), Scope.NONE) == Sharing(SHARED_TENANT, Scope.NONE, ())


def test_users_of_a_tenant_are_kept_apart_and_so_are_namesakes() -> None:
    domains = {share(Subject(tenant, user), Scope.USER) for tenant in ("acme", "globex") for user in ("joe", "ann")}
    assert len(domains) == 4


def test_a_session_is_beneath_its_user() -> None:
    mine, colleagues = share(JOE, Scope.SESSION, session="1"), share(Subject("acme", "ann"), Scope.SESSION, session="1")
    assert mine.ids == ("acme", "joe", "1")
    assert mine != colleagues


def test_narrowing_from_scope_none_still_pays_from_the_shared_quota() -> None:
    assert share(JOE, Scope.SESSION, granted=Scope.NONE, session="1").tenant == SHARED_TENANT


def test_a_granted_session_without_an_id_is_served_as_a_single_request() -> None:
    assert share(JOE, Scope.SESSION).scope is Scope.REQUEST


def test_scope_user_needs_a_user() -> None:
    with pytest.raises(ScopeError, match="give the API key a user"):
        share(ACME, Scope.USER)


@pytest.mark.parametrize("session", ["", "x" * 257])
def test_empty_and_endless_session_ids_are_refused(session: str) -> None:
    with pytest.raises(ScopeError):
        share(JOE, Scope.SESSION, session=session)
