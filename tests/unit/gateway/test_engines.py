"""The verdicts on an engine, the choice among engines, and what a client is told when one refuses."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from blockwarden_core.errors import RetiredToken, TokenError
from blockwarden_core.hooks import REQUIRED_HOOKS
from blockwarden_core.keys import SaltKeyring
from blockwarden_core.policy import EnginePolicy
from blockwarden_core.refusal import NEVER_FITS, render_refusal
from blockwarden_core.report import Attestation
from blockwarden_core.salt import verify_token
from blockwarden_gateway.engines.attestation import (
    Answer,
    Inconclusive,
    RefusalProbe,
    Refused,
    canary_body,
    check_attestation,
    check_refusal,
    check_sharing,
    read_attestation,
    read_cached,
    refusal_probes,
)
from blockwarden_gateway.engines.routing import choose, routing_key
from blockwarden_gateway.plain import is_retired, plain_refusal
from blockwarden_gateway.routes import GENERATION

STATEMENT = Attestation(
    pod_uid="p", boot_nonce="b", policy_uid="uid-1", policy_version=1, plugin_version="1", engine_version="1",
    hooks=dict.fromkeys(REQUIRED_HOOKS, "sha256:0"),
)  # fmt: skip
PROBE = RefusalProbe("unsalted", "/v1/completions", b"", "salt_missing")


def refusal(code: str = "salt_missing") -> bytes:
    return json.dumps({"error": {"type": "isolation", "code": code, "message": "x"}}).encode()


def usage(**details: Any) -> bytes:
    return json.dumps({"usage": {"prompt_tokens": 320} | details}).encode()


@pytest.mark.parametrize(
    ("changes", "boot", "reason"),
    [
        ({}, "b", None),
        ({"hooks": STATEMENT.hooks | {"another": "sha256:0"}}, "b", None),
        ({"policy_uid": "uid-2"}, "b", "another TenantPolicy"),
        ({}, None, "boot nonce"),
        ({}, "c", "boot nonce"),
        ({"boot_nonce": ""}, "", "boot nonce"),
        ({"hooks": {name: "0" for name in REQUIRED_HOOKS - {"worker", "pool"}}}, "b", "without the hooks pool, worker"),
    ],
)
def test_an_engines_statement(changes, boot, reason):
    verdict = check_attestation(STATEMENT.model_copy(update=changes), boot, policy_uid="uid-1")
    assert verdict is None if reason is None else isinstance(verdict, Refused) and reason in verdict.reason


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(200, "b", b"{}"), Refused),
        (Answer(404, None, b""), Refused),
        (Answer(503, None, b""), Inconclusive),
        (Answer(421, None, b""), Inconclusive),
    ],
)
def test_no_statement_is_no_trust(answer, kind):
    assert isinstance(read_attestation(answer), kind)


def test_a_statement_is_read():
    assert read_attestation(Answer(200, "b", STATEMENT.text().encode())) == STATEMENT


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(403, "b", refusal()), None),
        (Answer(403, "b", refusal("salt_forged")), Refused),
        (Answer(403, "b", b"no"), Refused),
        (Answer(200, "b", b""), Refused),
        (Answer(400, "b", b""), Refused),
        (Answer(401, "b", b""), Refused),
        (Answer(403, "c", refusal()), Inconclusive),
        (Answer(429, "b", b""), Inconclusive),
        (Answer(500, "b", b""), Inconclusive),
    ],
)
def test_what_must_be_refused(answer, kind):
    verdict = check_refusal(PROBE, answer, nonce="b")
    assert verdict is None if kind is None else isinstance(verdict, kind)


@pytest.mark.parametrize(
    ("answer", "cached"),
    [
        (Answer(200, "b", usage()), 0),
        (Answer(200, "b", usage(prompt_tokens_details=None)), 0),
        (Answer(200, "b", usage(prompt_tokens_details={"cached_tokens": 256})), 256),
        (Answer(200, "b", b"[]"), Refused),
        (Answer(200, "b", b"\xff"), Refused),
        (Answer(403, "b", refusal()), Refused),
        (Answer(200, "c", usage()), Inconclusive),
        (Answer(503, "b", b""), Inconclusive),
    ],
)
def test_the_canarys_cached_tokens(answer, cached):
    read = read_cached(answer, nonce="b")
    assert read == cached if isinstance(cached, int) else isinstance(read, cached)


@pytest.mark.parametrize(
    ("counts", "kind"),
    [((0, 256, 0), None), ((0, 256, 256), Refused), ((16, 256, 0), Refused), ((0, 0, 0), Inconclusive), ((0, 0, 16), Refused)],
)
def test_two_scopes_share_nothing(counts, kind):
    verdict = check_sharing(*counts)
    assert verdict is None if kind is None else isinstance(verdict, kind)


def test_every_route_is_probed_with_every_bad_token_and_streamed_too(material):
    probes = refusal_probes(material, forged_key=b"f" * 32, paths=tuple(GENERATION))
    assert isinstance(probes, tuple)
    assert Counter(probe.path for probe in probes) == dict.fromkeys(GENERATION, 3)
    assert {json.loads(probe.body)["stream"] for probe in probes} == {True, False}
    share = {"name": "canary", "guaranteed": 1, "limit": 1, "generation": 2, "floor": 2}
    policy = EnginePolicy.model_validate({"policyUid": "uid-1", "version": 1, "tenants": [share]})
    for probe in probes:
        with pytest.raises(TokenError) as refused:
            salt = json.loads(probe.body).get("cache_salt")
            policy.admit(verify_token(salt, engine_keys=material.engine_keys.accepted, policy_uid="uid-1"))
        assert refused.value.code == probe.code
        assert GENERATION[probe.path].parse(probe.body)


def test_a_canary_without_a_retired_generation_proves_nothing(material):
    generations = {**material.keyring.generations, "canary": 1}
    keyring = SaltKeyring(secrets=material.keyring.secrets, generations=generations)
    young = type(material)(material.policy, keyring, material.engine_keys, material.api_keys)
    assert isinstance(refusal_probes(young, forged_key=b"f" * 32, paths=("/v1/completions",)), Refused)


def test_a_canary_prompt_is_a_completion_of_token_ids():
    assert GENERATION["/v1/completions"].parse(canary_body("m", [33, 34], "salt")).model == "m"


KEYS = [routing_key(f"salt-{number}", b"hello") for number in range(300)]


def test_a_key_keeps_its_engine_and_keys_spread():
    loads = dict.fromkeys("abc", 0)
    chosen = Counter(choose(loads, key) for key in KEYS)
    assert [choose(loads, key) for key in KEYS] == [choose(loads, key) for key in KEYS]
    assert min(chosen.values()) > 60


def test_only_the_keys_of_an_engine_that_went_move():
    before = {key: choose(dict.fromkeys("abc", 0), key) for key in KEYS}
    after = {key: choose(dict.fromkeys("ab", 0), key) for key in KEYS}
    assert all(after[key] == engine for key, engine in before.items() if engine != "c")


def test_a_hot_key_does_not_pile_up_on_one_engine():
    loads = dict.fromkeys("abcd", 0)
    for _ in range(100):
        loads[choose(loads, KEYS[0]) or ""] += 1
    assert max(loads.values()) <= 1.25 * 100 / 4 + 1


def test_no_engine_is_none():
    assert choose({}, KEYS[0]) is None


def test_the_salt_and_the_prompts_beginning_both_steer():
    assert len({routing_key(salt, prompt) for salt in "ab" for prompt in (b"x", b"y")}) == 4


def said(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "BadRequestError", "code": 400}}).encode()


CONTEXT = b'{"error":{"message":"This model\'s maximum context length is 2048 tokens. However you sent v1.acme.1.salt"}}'


@pytest.mark.parametrize(
    ("status", "body", "own", "says"),
    [
        (400, CONTEXT, 400, "does not fit the model's context of 2048 tokens"),
        (400, said("max_tokens=9000 cannot be greater than max_model_len=max_total_tokens=4096. Please"), 400, "engine refused"),
        (400, said("max_tokens=9000 cannot be greater than max_model_len=4096. Please v1.acme.1"), 400, "context of 4096 tokens"),
        (400, said(render_refusal(NEVER_FITS, "v1.acme.1")), 400, "this tenant's share"),
        (400, said("quoted: " + render_refusal(NEVER_FITS, "v1.acme.1")), 400, "the engine refused the request"),
        (400, said('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'), 400, "tools: "),
        (400, b'{"error":{"message":"v1.acme.1.salt"}}', 400, "the engine refused the request"),
        (422, b"[", 400, "the engine refused the request"),
        (429, b"", 429, "no room"),
        (403, refusal("tenant_unknown"), 503, "does not serve this tenant right now"),
        (503, b"", 503, "right now"),
        (500, b'{"error":{"message":"v1.acme.1.salt"}}', 502, "failed to answer"),
        (404, b"", 502, "failed to answer"),
        (302, b"", 502, "failed to answer"),
    ],
)
def test_an_engines_refusal_becomes_our_own_sentence(status, body, own, says):
    refusal = plain_refusal(status, body)
    assert refusal.status == own
    assert says in refusal.message
    assert "v1.acme" not in refusal.message


def test_a_retired_salt_is_known_by_its_code():
    assert is_retired(403, refusal(RetiredToken.code))
    assert is_retired(403, said(render_refusal(RetiredToken.code, "found out after the middleware")))
    assert not is_retired(403, refusal("salt_forged"))
    assert not is_retired(400, refusal(RetiredToken.code))
