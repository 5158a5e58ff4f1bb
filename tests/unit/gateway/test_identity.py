"""Who a request is for: keys, scopes, models."""

from __future__ import annotations

import pytest

from blockwarden_core.identity import Scope, Sharing, Subject
from blockwarden_core.policy import GatewayTenant
from blockwarden_gateway.auth import authenticate
from blockwarden_gateway.errors import InvalidRequest, NoSuchModel, ScopeRefused, Unauthenticated
from blockwarden_gateway.grants import models_of, resolve_sharing, served_model
from blockwarden_gateway.headers import Headers

BOB = Subject("acme", "bob")


def headers(*pairs: tuple[str, str]) -> Headers:
    return Headers([(name.encode(), value.encode()) for name, value in pairs])


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_key_names_its_tenant_and_user(material, scheme):
    assert authenticate(headers(("authorization", f"{scheme} key-acme")), material) == Subject("acme", "acme-bob")


@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param([], id="no header"),
        pytest.param([("authorization", "Bearer ")], id="empty key"),
        pytest.param([("authorization", "Bearer nobody's")], id="unknown key"),
        pytest.param([("authorization", "Basic key-acme")], id="another scheme"),
        pytest.param([("authorization", "key-acme")], id="no scheme"),
        pytest.param([("x-api-key", "key-acme")], id="another header"),
        pytest.param([("authorization", "Bearer key-gone")], id="key of a tenant that is not served"),
        pytest.param([("authorization", "Bearer key-acme"), ("authorization", "Bearer key-globex")], id="two keys"),
        pytest.param([("authorization", "Bearer " + "k" * 600)], id="endless key"),
        pytest.param([("authorization", "Bearer \udc80\x00")], id="bytes that are no text"),
    ],
)
def test_everything_else_is_refused_with_one_answer(material, pairs):
    raw = [(name.encode(), value.encode("utf-8", "surrogateescape")) for name, value in pairs]
    with pytest.raises(Unauthenticated, match="no valid API key") as refused:
        authenticate(Headers(raw), material)
    assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    ("granted", "sent", "sharing"),
    [
        ("None", {}, Sharing("shared", Scope.NONE, ())),
        ("None", {"scope": "Tenant"}, Sharing("shared", Scope.TENANT, ("acme",))),
        ("Tenant", {}, Sharing("acme", Scope.TENANT, ("acme",))),
        ("Tenant", {"scope": "User"}, Sharing("acme", Scope.USER, ("acme", "bob"))),
        ("Tenant", {"session": "s1"}, Sharing("acme", Scope.SESSION, ("acme", "bob", "s1"))),
        ("Tenant", {"scope": "Tenant", "session": "s1"}, Sharing("acme", Scope.TENANT, ("acme",))),
        ("User", {"scope": "Request"}, Sharing("acme", Scope.REQUEST, ("acme", "bob", "nonce"))),
        ("Session", {}, Sharing("acme", Scope.REQUEST, ("acme", "bob", "nonce"))),
        ("Session", {"session": "globex"}, Sharing("acme", Scope.SESSION, ("acme", "bob", "globex"))),
    ],
)
def test_a_client_narrows_its_scope_beneath_its_subject(granted, sent, sharing):
    named = headers(*((f"x-blockwarden-{name}", value) for name, value in sent.items()))
    assert resolve_sharing(BOB, Scope(granted), named, lambda: "nonce") == sharing


@pytest.mark.parametrize(
    ("granted", "subject", "pairs", "error", "says"),
    [
        ("User", BOB, [("x-blockwarden-scope", "Tenant")], ScopeRefused, "wider than the granted scope User"),
        ("Request", BOB, [("x-blockwarden-scope", "None")], ScopeRefused, "wider"),
        ("User", Subject("acme"), [], ScopeRefused, "credential that names its user"),
        ("Tenant", Subject("acme"), [("x-blockwarden-scope", "User")], ScopeRefused, "names its user"),
        ("Tenant", BOB, [("x-blockwarden-scope", "Session")], InvalidRequest, "needs a session id"),
        ("Tenant", BOB, [("x-blockwarden-scope", "tenant")], InvalidRequest, "names no scope"),
        ("Tenant", BOB, [("x-blockwarden-session", "")], InvalidRequest, "must not be empty"),
        ("Tenant", BOB, [("x-blockwarden-session", "s" * 257)], InvalidRequest, "at most 256 characters"),
        ("Tenant", BOB, [("x-blockwarden-session", "a\x01b")], InvalidRequest, "not printable"),
        ("Tenant", BOB, [("x-blockwarden-session", "a"), ("x-blockwarden-session", "b")], InvalidRequest, "2 times"),
    ],
)
def test_what_may_not_be_asked_is_refused_in_one_sentence(granted, subject, pairs, error, says):
    with pytest.raises(error, match=says) as refused:
        resolve_sharing(subject, Scope(granted), headers(*pairs), lambda: "nonce")
    assert type(refused.value) is error


def test_a_session_id_that_is_not_utf8_is_refused():
    raw = Headers([(b"x-blockwarden-session", b"\xff\xfe")])
    with pytest.raises(InvalidRequest, match="not printable UTF-8"):
        resolve_sharing(BOB, Scope.TENANT, raw, lambda: "nonce")


def test_a_tenant_names_its_own_models_only(material):
    own = GatewayTenant.model_validate({"name": "acme", "scope": "Tenant", "models": [{"name": "fast", "served": "tiny"}]})
    assert served_model("fast", own, material.policy) == "tiny"
    with pytest.raises(NoSuchModel) as somebody_elses:
        served_model("tiny", own, material.policy)
    with pytest.raises(NoSuchModel) as nobodys:
        served_model("no such", own, material.policy)
    assert somebody_elses.value.message == nobodys.value.message


def test_without_a_list_the_served_model_is_the_tenants(material):
    assert [alias.name for alias in models_of(material.tenants["acme"], material.policy)] == ["tiny"]
