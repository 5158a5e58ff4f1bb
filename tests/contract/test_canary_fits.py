"""The request with which gateways attest engines fits into what the operator admits and reserves for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from blockwarden_core.policy import CANARY_TOKENS, MIN_MODEL_LEN
from blockwarden_gateway.engines.attestation import canary_body
from blockwarden_operator.api import TenantPolicySpec
from blockwarden_operator.checks import CheckInput, check_model_length
from blockwarden_operator.render.shares import canary_blocks


def spec(engine: dict[str, Any]) -> TenantPolicySpec:
    tenants = [{"name": "acme", "kvCache": {"guaranteed": "50%"}}]
    return TenantPolicySpec.model_validate(
        {"model": {"name": "m", "source": {"path": "/models/m"}}, "tenants": tenants, "engine": engine}
    )


@pytest.fixture
def canary_tokens() -> int:
    """Prompt and answer of the canary, as an engine counts them."""
    body = json.loads(canary_body("m", [32] * CANARY_TOKENS, "salt"))
    return len(body["prompt"]) + int(body["max_tokens"])


def test_the_shortest_admitted_context_holds_the_canary_and_no_shorter_one_is_admitted(canary_tokens: int) -> None:
    assert canary_tokens == MIN_MODEL_LEN
    assert check_model_length(CheckInput(spec({"maxModelLen": canary_tokens}))) is None
    assert check_model_length(CheckInput(spec({"maxModelLen": canary_tokens - 1}))) is not None


@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
def test_the_canarys_share_holds_two_probes(canary_tokens: int, block_size: int) -> None:
    assert canary_blocks(spec({"kvCache": {"blockSize": block_size}})) * block_size >= 2 * canary_tokens
