"""Whatever a client sends, an engine gets exactly the salt of its authenticated identity, and nothing that is not declared.

Checked twice over the same inputs: on the pure rewrite, and through the whole application with a recording upstream. The
broken twins forward what a client sent; the property must catch each of them.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from blockwarden_core.errors import TokenError
from blockwarden_core.identity import Scope, Sharing
from blockwarden_core.salt import derive_salt, sign_token, verify_token
from blockwarden_gateway import app, salting
from blockwarden_gateway.errors import InvalidRequest, ScopeRefused
from blockwarden_gateway.grants import resolve_sharing
from blockwarden_gateway.headers import Headers
from blockwarden_gateway.routes import GENERATION
from blockwarden_gateway.routes.chat import ChatFields
from blockwarden_gateway.routes.completions import CompletionFields

SCOPES = {"acme": "Tenant", "globex": "User", "initech": "None", "umbrella": "Session", "hooli": "Request"}
GENERATIONS = {"acme": 3, "globex": 1, "umbrella": 9, "hooli": 2, "initech": 7, "shared": 2, "canary": 2}
SECRET, ENGINE_KEY = b"n" * 32, b"e" * 32
DECLARED = {
    "/v1/chat/completions": set(ChatFields.__struct_fields__),
    "/v1/completions": set(CompletionFields.__struct_fields__),
}
MESSAGE_KEYS = {"role", "content", "name", "tool_calls", "tool_call_id"}
FORBIDDEN = (
    "cache_salt", "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "uuid", "request_id", "session_id", "priority",
    "multi_modal_uuids", "mm_processor_kwargs", "media_io_kwargs", "chat_template", "prompt_embeds", "user", "metadata",
)  # fmt: skip
STOLEN = sign_token(ENGINE_KEY, policy_uid="uid-1", tenant="globex", generation=1, salt="s" * 43)
NARROW = [None, *(scope.value for scope in Scope)]

texts = st.text(max_size=12)
scalars = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(
    scalars | st.just(STOLEN),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.sampled_from(FORBIDDEN), inner, max_size=3),
    max_leaves=8,
)
attacks = st.sampled_from([{}, {}, {"cache_salt": STOLEN}, {"cache_salt": ""}, {"vllm_xargs": {"cache_salt": STOLEN}}])
noise = st.builds(
    lambda attack, extra: {**extra, **attack}, attacks, st.dictionaries(st.sampled_from(FORBIDDEN) | texts, values, max_size=4)
)
parts = noise.map(lambda extra: {**extra, "type": "text", "text": "hello"})
messages = st.builds(
    lambda extra, content, role: {**extra, "role": role, "content": content},
    noise.map(lambda extra: {key: value for key, value in extra.items() if key not in MESSAGE_KEYS}),
    texts | st.lists(parts, min_size=1, max_size=3),
    st.sampled_from(["user", "system", "assistant"]),
)
prompts = {
    "/v1/chat/completions": st.lists(messages, min_size=1, max_size=3).map(lambda value: {"messages": value}),
    "/v1/completions": (texts | st.lists(st.integers(0, 999), min_size=1, max_size=9)).map(lambda value: {"prompt": value}),
}
known = st.fixed_dictionaries(
    {}, optional={"stream": st.booleans(), "max_tokens": st.integers(1, 50), "temperature": st.floats(0, 2), "n": st.just(1)}
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, bytes]:
    """A route and a body: well-formed at its core, with noise at every level, or any JSON at all."""
    path = draw(st.sampled_from(sorted(GENERATION)))
    if draw(st.integers(0, 7)) == 0:
        return path, json.dumps(draw(values)).encode()
    extra = {key: value for key, value in draw(noise).items() if key not in DECLARED[path]}
    return path, json.dumps(extra | {"model": "tiny"} | draw(prompts[path]) | draw(known)).encode()


header_names = st.sampled_from(
    ["x-tenant-id", "x-request-id", "x-session-id", "x-data-parallel-rank", "x-vllm-priority", "cookie", "x-forwarded-for",
     "x-blockwarden-boot", "x-blockwarden-tenant", "endpoint-load-metrics-format", "traceparent", "host", "content-type"]
)  # fmt: skip
header_values = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20) | st.just(STOLEN)


@st.composite
def identities(draw: st.DrawFn) -> tuple[str, list[tuple[bytes, bytes]], Scope | None, str | None]:
    """A tenant, its headers, and the scope and session that they ask for."""
    tenant = draw(st.sampled_from(sorted(SCOPES)))
    wanted = draw(st.sampled_from(NARROW))
    session = draw(st.none() | st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=9))
    headers = [("authorization", f"Bearer key-{tenant}")]
    headers += [("x-blockwarden-scope", wanted)] if wanted else []
    headers += [("x-blockwarden-session", session)] if session else []
    headers += draw(st.lists(st.tuples(header_names, header_values), max_size=5))
    raw = [(name.encode(), value.encode()) for name, value in headers]
    return tenant, raw, Scope(wanted) if wanted else None, session


def expected_sharing(tenant: str, wanted: Scope | None, session: str | None) -> Sharing | None:
    """DESIGN's rule, written a second time: whose trust domain, None where it is fresh for each request."""
    granted = Scope(SCOPES[tenant])
    scope = wanted or granted
    if wanted is None and session is not None and granted not in (Scope.SESSION, Scope.REQUEST):
        scope = Scope.SESSION
    if scope is Scope.REQUEST or (scope is Scope.SESSION and session is None):
        return None
    user = f"{tenant}-bob"
    ids = {Scope.NONE: (), Scope.TENANT: (tenant,), Scope.USER: (tenant, user), Scope.SESSION: (tenant, user, session or "")}
    return Sharing("shared" if granted is Scope.NONE else tenant, scope, ids[scope])


def expected_salt(sharing: Sharing) -> str:
    return derive_salt(SECRET, deployment="uid-1", generation=GENERATIONS[sharing.tenant], sharing=sharing)


def check_body(path: str, client: bytes, upstream: bytes, *, salt: str) -> None:
    """What an engine may get for what a client sent."""
    sent = json.loads(upstream)
    assert sent["cache_salt"] == salt
    assert upstream.count(b'"cache_salt"') == 1
    assert sent.keys() <= DECLARED[path] | {"cache_salt"}
    assert sent["model"] == "tiny"
    for message in sent.get("messages", ()):
        assert message.keys() <= MESSAGE_KEYS
        for part in message["content"] if isinstance(message["content"], list) else ():
            assert part.keys() == {"type", "text"}
    if STOLEN.encode() not in json.dumps(json.loads(client)).encode():
        assert STOLEN.encode() not in upstream


def rewrite(path: str, body: bytes, *, salt: str) -> bytes:
    return GENERATION[path].parse(body).upstream(model="tiny", cache_salt=salt)


def check_rewrite(rewriter: Any, call: tuple[str, bytes]) -> None:
    path, body = call
    try:
        upstream = rewriter(path, body, salt="OURS")
    except InvalidRequest:
        return
    check_body(path, body, upstream, salt="OURS")


@given(calls())
@settings(max_examples=200, deadline=None)
def test_the_rewrite_sets_our_salt_and_keeps_only_what_is_declared(call):
    check_rewrite(rewrite, call)


def check_noise(rewriter: Any, prompt: dict[str, Any], extra: dict[str, Any]) -> None:
    extra = {key: value for key, value in extra.items() if key not in DECLARED["/v1/chat/completions"]}
    plain = json.dumps({"model": "tiny"} | prompt).encode()
    noisy = json.dumps(extra | {"model": "tiny"} | prompt).encode()
    seen = [rewriter("/v1/chat/completions", body, salt="OURS") for body in (noisy, plain)]
    assert seen[0] == seen[1]


@given(prompts["/v1/chat/completions"], noise)
@settings(max_examples=100, deadline=None)
def test_noise_changes_nothing_that_an_engine_sees(prompt, extra):
    check_noise(rewrite, prompt, extra)


def forwards_the_clients_salt(path: str, body: bytes, *, salt: str) -> bytes:
    client, ours = json.loads(body), json.loads(rewrite(path, body, salt=salt))
    return json.dumps(ours | {key: client[key] for key in ("cache_salt",) if client.get(key)}).encode()


def forwards_unknown_fields(path: str, body: bytes, *, salt: str) -> bytes:
    return json.dumps(json.loads(body) | json.loads(rewrite(path, body, salt=salt))).encode()


def forwards_parts(path: str, body: bytes, *, salt: str) -> bytes:
    client, ours = json.loads(body), json.loads(rewrite(path, body, salt=salt))
    return json.dumps(ours | {key: client[key] for key in ("messages",) if key in client}).encode()


def trusts_a_prefix(path: str, body: bytes, *, salt: str) -> bytes:
    client, ours = json.loads(body), json.loads(rewrite(path, body, salt=salt))
    stolen = str(client.get("cache_salt")).startswith("v1.")
    return json.dumps(ours | ({"cache_salt": client["cache_salt"]} if stolen else {})).encode()


TWIN_SETTINGS = settings(
    max_examples=1000, deadline=None, database=None, report_multiple_bugs=False, derandomize=True, phases=[Phase.generate]
)
TWINS = [forwards_the_clients_salt, forwards_unknown_fields, forwards_parts, trusts_a_prefix]


@pytest.mark.parametrize("twin", TWINS)
def test_the_property_catches_a_broken_twin(twin):
    @given(calls())
    @TWIN_SETTINGS
    def property_(call):
        check_rewrite(twin, call)

    with pytest.raises(AssertionError):
        property_()


@pytest.mark.parametrize("twin", [forwards_the_clients_salt, forwards_unknown_fields, trusts_a_prefix])
def test_noise_that_a_broken_twin_forwards_is_caught(twin):
    @given(prompts["/v1/chat/completions"], noise)
    @TWIN_SETTINGS
    def property_(prompt, extra):
        check_noise(twin, prompt, extra)

    with pytest.raises(AssertionError):
        property_()


@dataclass(frozen=True)
class ForwardingCall:
    """A completion call that sends the client's salt where there is one."""

    body: bytes
    inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def upstream(self, *, model: str, cache_salt: str) -> bytes:
        salt = json.loads(self.body)["cache_salt"] or cache_salt
        return bytes(self.inner.upstream(model=model, cache_salt=str(salt)))


def test_the_property_catches_a_broken_twin_through_the_application(harness, monkeypatch):
    route = GENERATION["/v1/completions"]
    twin = dataclasses.replace(route, parse=lambda body: ForwardingCall(body, route.parse(body)))
    monkeypatch.setitem(GENERATION, "/v1/completions", twin)

    @given(values, identities())
    @TWIN_SETTINGS
    def property_(salt, identity):
        body = json.dumps({"model": "tiny", "prompt": "hello", "cache_salt": salt}).encode()
        check_application(harness, ("/v1/completions", body), identity)

    with pytest.raises((AssertionError, TokenError)):
        property_()


@given(calls(), identities())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_through_the_application_an_engine_gets_the_salt_of_the_identity(harness, call, identity):
    check_application(harness, call, identity)


def check_application(harness: Any, call: tuple[str, bytes], identity: Any) -> None:
    (path, body), (tenant, headers, wanted, session) = call, identity
    status, answer, requests = harness.post(path, body, headers)
    event(f"status {status}")
    assert STOLEN.encode() not in answer
    if status != 200:
        assert not requests
        assert status in (400, 403, 404)
        assert {"message", "type", "param", "code"} == json.loads(answer)["error"].keys()
        return
    [request] = requests
    check_token(request, tenant, expected_sharing(tenant, wanted, session))
    check_body(path, body, request.body or b"", salt=json.loads(request.body or b"")["cache_salt"])
    assert request.headers.keys() == {"content-type", "x-request-id", "x-blockwarden-boot"}
    assert request.headers["x-blockwarden-boot"] == "boot"
    assert request.headers["x-request-id"].startswith("gw-")


def check_token(request: Any, tenant: str, sharing: Sharing | None) -> None:
    token = verify_token(json.loads(request.body)["cache_salt"], engine_keys=[ENGINE_KEY], policy_uid="uid-1")
    payer = "shared" if SCOPES[tenant] == "None" else tenant
    assert (token.tenant, token.generation) == (payer, GENERATIONS[payer])
    if sharing is not None:
        assert token.salt == expected_salt(sharing)


@given(identities())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_client_is_refused_exactly_where_it_asks_for_more_than_it_has(harness, identity):
    check_refused(harness, identity)


def check_refused(harness: Any, identity: Any) -> None:
    tenant, headers, wanted, session = identity
    body = b'{"model":"tiny","prompt":"hello"}'
    status, _, requests = harness.post("/v1/completions", body, headers)
    order = list(Scope)
    wider = wanted is not None and order.index(wanted) < order.index(Scope(SCOPES[tenant]))
    no_session = wanted is Scope.SESSION and session is None
    assert status == (200 if not wider and not no_session else 403 if wider else 400)
    assert bool(requests) == (status == 200)


def grants_whatever_is_wanted(subject: Any, granted: Scope, headers: Any, nonce: Any) -> Sharing:
    return resolve_sharing(subject, Scope.NONE, headers, nonce)


def heeds_no_header(subject: Any, granted: Scope, headers: Any, nonce: Any) -> Sharing:
    return resolve_sharing(subject, granted, Headers([]), nonce)


def refuses_to_narrow(subject: Any, granted: Scope, headers: Any, nonce: Any) -> Sharing:
    sharing = resolve_sharing(subject, granted, headers, nonce)
    if sharing.scope not in (granted, Scope.REQUEST):
        raise ScopeRefused("a twin")
    return sharing


@pytest.mark.parametrize("twin", [grants_whatever_is_wanted, heeds_no_header, refuses_to_narrow])
def test_a_twin_that_refuses_others_is_caught(harness, monkeypatch, twin):
    monkeypatch.setattr(app, "resolve_sharing", twin)

    @given(identities())
    @TWIN_SETTINGS
    def property_(identity):
        check_refused(harness, identity)

    with pytest.raises(AssertionError):
        property_()


several_identities = st.lists(identities(), min_size=2, max_size=6)


@given(several_identities)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_two_trust_domains_never_get_one_salt(harness, several):
    check_domains(harness, several)


def check_domains(harness: Any, several: Any) -> None:
    domains: dict[str, object] = {}
    for number, (tenant, headers, wanted, session) in enumerate(several):
        status, _, requests = harness.post("/v1/completions", b'{"model":"tiny","prompt":"hello"}', headers)
        if status != 200:
            continue
        salt = json.loads(requests[0].body)["cache_salt"].split(".")[3]
        domain = expected_sharing(tenant, wanted, session) or number
        assert domains.setdefault(salt, domain) == domain


def forgets_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def derive(secret: bytes, *, sharing: Sharing, **rest: Any) -> str:
        return derive_salt(secret, sharing=dataclasses.replace(sharing, ids=sharing.ids[:2]), **rest)

    monkeypatch.setattr(salting, "derive_salt", derive)


def forgets_the_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    def derive(secret: bytes, *, sharing: Sharing, **rest: Any) -> str:
        return derive_salt(secret, sharing=Sharing("t", sharing.scope, sharing.ids[2:]), **rest | {"generation": 1})

    monkeypatch.setattr(salting, "derive_salt", derive)


def draws_one_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "secrets", SimpleNamespace(token_hex=lambda size: "0" * 2 * size))


@pytest.mark.parametrize("twin", [forgets_the_session, forgets_the_tenant, draws_one_nonce])
def test_a_twin_that_gives_two_domains_one_salt_is_caught(harness, monkeypatch, twin):
    twin(monkeypatch)

    @given(several_identities)
    @TWIN_SETTINGS
    def property_(several):
        check_domains(harness, several)

    with pytest.raises(AssertionError):
        property_()
