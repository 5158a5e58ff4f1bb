"""Key material that is not a certificate: salt secrets, engine keys, API keys. Pure: randomness is an argument.

What exists is kept; what is missing or damaged is made anew and reported as such, because every such event ends somebody's
cache or somebody's credential and must be seen.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from blockwarden_core.errors import DocumentError
from blockwarden_core.keys import ApiKeyDigest, ApiKeys, EngineKey, EngineKeys, SaltKeyring, SaltSecret, api_key_digest
from blockwarden_core.salt import MIN_SECRET_BYTES, b64url

from .errors import KeyMaterialError
from .render.names import Manifest

Entropy = Callable[[int], bytes]
"""Returns that many unpredictable bytes; `secrets.token_bytes` in the operator."""

KEYRING_FILE: Final = "keyring.json"
ENGINE_KEYS_FILE: Final = "keys.json"
DIGESTS_FILE: Final = "digests.json"
API_KEY_FIELD: Final = "api-key"
API_KEY_PREFIX: Final = "bw-"
MIN_API_KEY_LENGTH: Final = 32
"""Digests are unsalted, so a key must be too long to guess: 32 characters also of a sparse alphabet."""


def secret_data(manifest: Manifest | None, field: str) -> bytes | None:
    """One decoded field of a Secret, or None where the Secret or the field is missing.

    Raises:
        KeyMaterialError: the field is not base64.
    """
    encoded = ((manifest or {}).get("data") or {}).get(field)
    if encoded is None:
        return None
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise KeyMaterialError(f"data.{field}: not base64") from None


def encode_data(fields: Mapping[str, bytes | str]) -> dict[str, str]:
    """The `data` of a Secret."""
    raw = {name: value.encode() if isinstance(value, str) else value for name, value in fields.items()}
    return {name: base64.b64encode(value).decode("ascii") for name, value in sorted(raw.items())}


def read_keyring(manifest: Manifest | None) -> SaltKeyring | None:
    """The keyring in its Secret; None where it is missing or damaged: both mean that the salts are lost."""
    try:
        text = secret_data(manifest, KEYRING_FILE)
        return SaltKeyring.read(text) if text is not None else None
    except (DocumentError, KeyMaterialError):
        return None


def read_engine_keys(manifest: Manifest | None) -> EngineKeys | None:
    """The engine keys in their Secret; None where they are missing or damaged."""
    try:
        text = secret_data(manifest, ENGINE_KEYS_FILE)
        return EngineKeys.read(text) if text is not None else None
    except (DocumentError, KeyMaterialError):
        return None


def new_salt_secret(entropy: Entropy) -> SaltSecret:
    """A fresh salt secret; its id is random too, so that a lost and remade keyring never reuses one."""
    return SaltSecret.model_validate({"id": f"salt-{entropy(8).hex()}", "secret": entropy(MIN_SECRET_BYTES)})


def new_engine_keys(entropy: Entropy) -> EngineKeys:
    """One fresh engine key, active."""
    key = EngineKey.model_validate({"id": f"engine-{entropy(8).hex()}", "key": entropy(MIN_SECRET_BYTES)})
    return EngineKeys(active=key.id, keys=(key,))


def new_api_key(entropy: Entropy) -> str:
    """A fresh API key of 256 bits: `bw-` and 43 characters."""
    return API_KEY_PREFIX + b64url(entropy(32))


@dataclass(frozen=True, slots=True)
class Credential:
    """One API key as the policy asks for it: whose it is, and the value where one was found."""

    tenant: str
    user: str | None
    origin: str
    value: bytes | None = field(repr=False)


def check_credential(credential: Credential) -> str | None:
    """What is wrong with an API key, in one sentence that names where it comes from and never the key; None if it is fit."""
    if credential.value is None:
        return f"{credential.origin} does not exist: create it, or leave apiKeys out to have a key generated"
    text = credential.value
    if len(text) < MIN_API_KEY_LENGTH:
        return f"{credential.origin} is shorter than {MIN_API_KEY_LENGTH} characters: use a longer random key"
    if not all(0x21 <= byte <= 0x7E for byte in text):
        return f"{credential.origin} holds a character outside printable ASCII (a newline?): store the bare key"
    return None


def plan_api_keys(credentials: Iterable[Credential]) -> tuple[ApiKeys, list[str]]:
    """The digests to mount, and what is wrong with the credentials left out.

    A key that two subjects share identifies neither, so both are left out.
    """
    problems: list[str] = []
    fit: dict[str, list[Credential]] = {}
    for credential in credentials:
        if (problem := check_credential(credential)) is not None:
            problems.append(problem)
        else:
            fit.setdefault(api_key_digest((credential.value or b"").decode("ascii")), []).append(credential)
    kept: list[ApiKeyDigest] = []
    for digest, holders in fit.items():
        if len({(holder.tenant, holder.user) for holder in holders}) > 1:
            origins = " and ".join(sorted(holder.origin for holder in holders))
            problems.append(f"{origins} hold the same key, which identifies neither: give each its own")
        else:
            kept.append(ApiKeyDigest(digest=digest, tenant=holders[0].tenant, user=holders[0].user))
    return ApiKeys(keys=tuple(sorted(kept, key=lambda key: (key.tenant, key.user or "", key.digest)))), problems
