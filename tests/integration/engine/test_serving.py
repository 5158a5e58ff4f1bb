"""Two tenants served by one real engine: what they share, what they do not, and which doors are closed."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from blockwarden_core import layout
from blockwarden_core.hooks import REQUIRED_HOOKS

PROMPT = "Several tenants share one engine and must not learn anything of one another. " * 8


def test_a_scope_hits_its_own_cache_and_nobody_elses(engine: Any) -> None:
    a, b = engine.deployment.token("a", user="s1"), engine.deployment.token("b", user="s1")
    assert engine.cached(a, PROMPT) == 0
    assert engine.cached(a, PROMPT) > 0
    assert engine.cached(b, PROMPT) == 0
    assert engine.cached(engine.deployment.token("a", user="s2"), PROMPT) == 0, "two users of one tenant are two scopes"


def test_chat_keeps_scopes_apart_too(engine: Any) -> None:
    def cached(token: str) -> int:
        body = {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4, "cache_salt": token}
        answer = engine.request("POST", "/v1/chat/completions", body)
        assert answer.status == 200, answer.body
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    a, b = engine.deployment.token("a", user="c1"), engine.deployment.token("b", user="c1")
    assert (cached(a), cached(a) > 0, cached(b)) == (0, True, 0)


def test_a_stream_is_served_and_carries_the_boot_nonce(engine: Any) -> None:
    answer = engine.complete(engine.deployment.token("a"), PROMPT, stream=True)
    assert answer.status == 200
    assert answer.body.rstrip().endswith(b"data: [DONE]")
    assert answer.headers[layout.BOOT_HEADER] == engine.attestation().boot_nonce
    assert not {"server", "endpoint-load-metrics"} & answer.headers.keys()


def test_an_open_length_is_cut_to_the_tenants_room_and_a_named_one_is_refused(engine: Any) -> None:
    token = engine.deployment.token("canary", generation=2)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "cache_salt": token}
    answer = engine.request("POST", "/v1/chat/completions", body | {"ignore_eos": True})
    assert answer.status == 200, answer.body
    assert answer.json()["usage"]["total_tokens"] <= 4 * 32
    refused = engine.request("POST", "/v1/chat/completions", body | {"max_tokens": 500})
    assert refused.status == 400
    assert "KV blocks of 32 tokens and its tenant can hold 4" in refused.json()["error"]["message"]


def test_the_attestation_names_every_required_hook(engine: Any) -> None:
    attestation = engine.attestation()
    assert attestation.hooks.keys() == REQUIRED_HOOKS
    assert (attestation.policy_uid, attestation.engine_version) == ("policy-under-test", "0.32.0")


def test_a_wrong_boot_nonce_is_turned_away(engine: Any) -> None:
    assert engine.request("GET", "/v1/models", headers={layout.BOOT_HEADER: "00"}).status == 421
    assert engine.request("GET", "/v1/models", headers={layout.BOOT_HEADER: engine.attestation().boot_nonce}).status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/metrics"), ("GET", "/health"), ("GET", "/load"), ("GET", "/version"), ("GET", "/kv_event_sources"),
        ("GET", "/ping"), ("POST", "/invocations"), ("POST", "/tokenize"), ("POST", "/v1/responses"), ("POST", "/v1/messages"),
        ("POST", "/scale_elastic_ep"), ("POST", "/abort_requests"), ("POST", "/inference/v1/generate"), ("GET", "/openapi.json"),
        ("POST", "/v1/chat/completions/batch"), ("POST", "/start_profile"), ("POST", "/v1/load_lora_adapter"),
    ],
)  # fmt: skip
def test_vllms_other_routes_are_closed_alike(engine: Any, method: str, path: str) -> None:
    answer = engine.request(method, path, {"cache_salt": engine.deployment.token("a"), "prompt": "x"})
    assert (answer.status, answer.json()["error"]["code"]) == (404, "not_found")


def test_the_api_port_wants_a_client_certificate_of_this_policys_authority(engine: Any, tmp_path: Path) -> None:
    stranger = type(engine.deployment.authority)("another CA").issue(tmp_path / "stranger", ExtendedKeyUsageOID.CLIENT_AUTH)
    for client in (Path("/nonexistent"), stranger):
        connection = engine.connection(client=client)
        with contextlib.closing(connection), pytest.raises((ssl.SSLError, ConnectionError)):
            connection.request("GET", "/v1/models")
            connection.getresponse()


def test_the_internal_port_answers_health_status_and_listed_metrics(engine: Any) -> None:
    assert engine.internal(layout.LIVEZ_PATH).status == engine.internal(layout.READYZ_PATH).status == 200
    report = engine.report()
    pool = report.pool
    assert pool.total == pool.clean + pool.owned + pool.dirty + pool.scrubbing == 128
    assert {share.name for share in report.tenants} >= {"a", "b", "c", "canary"}
    page = engine.internal(layout.METRICS_PATH).body.decode()
    assert 'blockwarden_tenant_limit_blocks{tenant="a"} 37.0' in page
    assert "vllm:prompt_tokens_total" in page
    names = {line.split("{")[0].split(" ")[0] for line in page.splitlines() if line and not line.startswith("#")}
    assert all(name.startswith(("blockwarden_", "vllm:")) for name in names)
    assert "vllm:cache_config_info" not in names
    assert engine.internal("/v1/models").status == 404


def test_the_internal_port_does_not_take_endless_requests(engine: Any) -> None:
    connection = engine.connection(engine.internal_port, client=Path("/nonexistent"))
    with contextlib.closing(connection), contextlib.suppress(ConnectionError, ssl.SSLError):
        connection.request("GET", layout.LIVEZ_PATH, headers={"x-pad": "y" * 60_000})
        assert connection.getresponse().status == 400
    assert engine.internal(layout.LIVEZ_PATH).status == 200
