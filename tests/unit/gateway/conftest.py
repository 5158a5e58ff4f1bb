"""Material of a small policy: acme (scope per tenant), globex (per user), initech (None), umbrella (Session)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from blockwarden_core.keys import ApiKeys, EngineKeys, SaltKeyring, api_key_digest
from blockwarden_core.policy import GatewayPolicy
from blockwarden_core.salt import b64url
from blockwarden_gateway.material import Material

SCOPES = {"acme": "Tenant", "globex": "User", "initech": "None", "umbrella": "Session"}


def new_material(**policy: Any) -> Material:
    tenants = [{"name": name, "scope": scope} for name, scope in SCOPES.items()]
    engine = {"host": "engine", "port": 8000, "serverName": "engine.ns.svc"}
    document = {"policyUid": "uid-1", "version": 7, "model": "tiny", "engine": engine, "tenants": tenants}
    keys = [{"digest": api_key_digest(f"key-{name}"), "tenant": name, "user": f"{name}-bob"} for name in SCOPES]
    keys += [{"digest": api_key_digest("key-no-user"), "tenant": "globex"}]
    keys += [{"digest": api_key_digest("key-gone"), "tenant": "no-longer-served"}]
    return Material(
        GatewayPolicy.model_validate(document | policy),
        SaltKeyring.model_validate({
            "secrets": [{"id": "old", "secret": b64url(b"o" * 32)}, {"id": "new", "secret": b64url(b"n" * 32)}],
            "generations": {"acme": 3, "globex": 1, "umbrella": 1, "shared": 2, "canary": 2},
        }),
        EngineKeys.model_validate({"active": "k", "keys": [{"id": "k", "key": b64url(b"e" * 32)}]}),
        ApiKeys.model_validate({"keys": keys}),
    )  # fmt: skip


@pytest.fixture
def make_material() -> Callable[..., Material]:
    return new_material


@pytest.fixture
def material() -> Material:
    return new_material()
