"""Key material as it is mounted: the salt keyring, the engine keys, the API-key digests.

Values are pydantic `SecretBytes`: they do not show in a repr, a log line or an error. `text()` is the only way out.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainSerializer, SecretBytes, model_validator
from pydantic.functional_validators import BeforeValidator

from .document import Document
from .identity import TenantName
from .salt import MAX_GENERATION, MIN_SECRET_BYTES, b64url, unb64url


def _decode(value: Any) -> Any:
    if isinstance(value, str):
        value = unb64url(value)
    raw = value.get_secret_value() if isinstance(value, SecretBytes) else value
    if not isinstance(raw, bytes) or len(raw) < MIN_SECRET_BYTES:
        raise ValueError(f"must be URL-safe base64 of at least {MIN_SECRET_BYTES} bytes")
    return raw


Key = Annotated[
    SecretBytes,
    BeforeValidator(_decode),
    PlainSerializer(lambda key: b64url(key.get_secret_value()), return_type=str, when_used="json"),
]
KeyId = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9._-]+$")]


class SaltSecret(Document):
    """One salt secret of the keyring."""

    id: KeyId
    secret: Key


class SaltKeyring(Document):
    """The salt secrets, oldest first, and every tenant's generation. The last secret is the one in use.

    An older secret stays during a rotation only, so that each phase can be resumed; nothing derives from it any more.
    """

    kind: Literal["SaltKeyring"] = "SaltKeyring"
    secrets: tuple[SaltSecret, ...] = Field(min_length=1)
    generations: dict[str, Annotated[int, Field(ge=1, le=MAX_GENERATION)]]

    @property
    def current(self) -> SaltSecret:
        return self.secrets[-1]


class EngineKey(Document):
    """One key under which tokens are tagged and engine policies sealed."""

    id: KeyId
    key: Key


class EngineKeys(Document):
    """The engine keys that an engine accepts, and the id of the one that gateways and operator sign with."""

    kind: Literal["EngineKeys"] = "EngineKeys"
    active: KeyId
    keys: tuple[EngineKey, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _active_is_present(self) -> Self:
        if all(key.id != self.active for key in self.keys):
            raise ValueError("active names no key of keys")
        return self

    @property
    def signing(self) -> EngineKey:
        return next(key for key in self.keys if key.id == self.active)

    @property
    def signing_key(self) -> bytes:
        return self.signing.key.get_secret_value()

    @property
    def accepted(self) -> tuple[bytes, ...]:
        return tuple(key.key.get_secret_value() for key in self.keys)


class ApiKeyDigest(Document):
    """An API key as the gateway knows it: the SHA-256 of the key, and whose it is."""

    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    tenant: TenantName
    user: Annotated[str, Field(min_length=1, max_length=256)] | None = None


class ApiKeys(Document):
    """Every API key of one deployment."""

    kind: Literal["ApiKeys"] = "ApiKeys"
    keys: tuple[ApiKeyDigest, ...]


def api_key_digest(api_key: str) -> str:
    """The digest under which an API key is kept. API keys are long and random, so a plain hash does not invite guessing."""
    return hashlib.sha256(api_key.encode()).hexdigest()
