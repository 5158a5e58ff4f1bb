"""The mounted documents in force, as one value. Pure: texts come in, a snapshot comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from blockwarden_core import layout
from blockwarden_core.document import Document
from blockwarden_core.errors import DocumentError
from blockwarden_core.identity import Subject
from blockwarden_core.keys import ApiKeys, EngineKeys, SaltKeyring
from blockwarden_core.policy import GatewayPolicy, GatewayTenant

DOCUMENTS: Final[Mapping[str, Callable[[str], Document]]] = {
    layout.GATEWAY_POLICY: GatewayPolicy.read,
    layout.SALT_KEYRING: SaltKeyring.read,
    layout.ENGINE_KEYS: EngineKeys.read,
    layout.API_KEYS: ApiKeys.read,
}
"""The files that a gateway reads, by path beneath the root."""


@dataclass(frozen=True)
class Material:
    """Who asks and for what is decided on one snapshot, so a reload never splits that. The salt is of the one in force whenever
    the request is sent, or a request that began before a rotation could not be sent again after it."""

    policy: GatewayPolicy
    keyring: SaltKeyring = field(repr=False)
    engine_keys: EngineKeys = field(repr=False)
    api_keys: ApiKeys = field(repr=False)

    @cached_property
    def subjects(self) -> Mapping[str, Subject]:
        """Who an API key belongs to, by its digest; keys of tenants that the policy does not serve are left out."""
        served = self.tenants
        return {key.digest: Subject(key.tenant, key.user) for key in self.api_keys.keys if key.tenant in served}

    @cached_property
    def tenants(self) -> Mapping[str, GatewayTenant]:
        return {tenant.name: tenant for tenant in self.policy.tenants}


def read_document(path: str, text: str, *, policy_uid: str) -> Document:
    """The document that is mounted at `path`.

    Raises:
        DocumentError: unreadable, of another TenantPolicy, or ambiguous about whose a key is.
    """
    document = DOCUMENTS[path](text)
    if isinstance(document, GatewayPolicy) and document.policy_uid != policy_uid:
        raise DocumentError("GatewayPolicy: policyUid: written for another TenantPolicy")
    if isinstance(document, ApiKeys) and len({key.digest for key in document.keys}) != len(document.keys):
        raise DocumentError("ApiKeys: keys: one digest is listed twice, so it is unclear whose key it is")
    return document


def assemble(documents: Mapping[str, Document]) -> Material:
    """The snapshot of documents by path.

    Raises:
        DocumentError: one is missing or of the wrong kind.
    """
    policy, keyring = documents.get(layout.GATEWAY_POLICY), documents.get(layout.SALT_KEYRING)
    engine_keys, api_keys = documents.get(layout.ENGINE_KEYS), documents.get(layout.API_KEYS)
    if not isinstance(policy, GatewayPolicy) or not isinstance(keyring, SaltKeyring):
        raise DocumentError(f"{layout.GATEWAY_POLICY} and {layout.SALT_KEYRING} are both needed to serve")
    if not isinstance(engine_keys, EngineKeys) or not isinstance(api_keys, ApiKeys):
        raise DocumentError(f"{layout.ENGINE_KEYS} and {layout.API_KEYS} are both needed to serve")
    return Material(policy, keyring, engine_keys, api_keys)
