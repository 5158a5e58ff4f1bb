"""The Secrets: who may hold what is decided by where each is mounted (`gateway`, `engine`), and two are mounted nowhere."""

from __future__ import annotations

from collections.abc import Mapping

from blockwarden_core.keys import ApiKeys, EngineKeys
from blockwarden_operator.rotation import RECORD_ANNOTATION, RotationState
from blockwarden_operator.salts import API_KEY_FIELD, DIGESTS_FILE, ENGINE_KEYS_FILE, KEYRING_FILE, encode_data

from .names import Component, Manifest, Owner, render_object


def render_keyring(owner: Owner, state: RotationState) -> Manifest:
    """The salt keyring and, in the same write, the record of its rotation."""
    manifest = _secret(owner, owner.salt_keyring, Component.GATEWAY, {KEYRING_FILE: state.keyring.text()})
    manifest["metadata"]["annotations"] = {RECORD_ANNOTATION: state.record.text()}
    return manifest


def render_engine_keys(owner: Owner, keys: EngineKeys) -> Manifest:
    """The keys that gateways sign with and engines verify with."""
    return _secret(owner, owner.engine_key, Component.POLICY, {ENGINE_KEYS_FILE: keys.text()})


def render_digests(owner: Owner, keys: ApiKeys) -> Manifest:
    """The digests by which gateways know API keys."""
    return _secret(owner, owner.api_keys, Component.GATEWAY, {DIGESTS_FILE: keys.text()})


def render_generated_key(owner: Owner, tenant: str, api_key: str) -> Manifest:
    """A tenant's generated API key, for whoever hands it to the tenant."""
    return _secret(owner, owner.generated_key(tenant), Component.POLICY, {API_KEY_FIELD: api_key})


def render_pki(owner: Owner, data: Mapping[str, Mapping[str, bytes]]) -> list[Manifest]:
    """The CA and the leaf certificates."""
    return [_secret(owner, name, _component_of(owner, name), fields) for name, fields in data.items()]


def _component_of(owner: Owner, name: str) -> Component:
    if name == owner.engine_tls:
        return Component.ENGINE
    return Component.POLICY if name == owner.ca else Component.GATEWAY


def _secret(owner: Owner, name: str, component: Component, fields: Mapping[str, bytes | str]) -> Manifest:
    return render_object("Secret", owner, name, component, {"type": "Opaque", "data": encode_data(fields)})
