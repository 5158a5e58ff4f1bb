"""Salt tokens: how a request's trust domain travels to the engine in vLLM's `cache_salt`.

    salt   = b64url(HMAC-SHA256(salt secret, frame("v1", deployment, tenant, generation, scope, ids...)))     43 characters
    token  = v1.<tenant>.<generation>.<salt>.<tag>                                                    at most 128 characters
    tag    = b64url(HMAC-SHA256(engine key, frame("tag", "v1", policy UID, tenant, generation, salt))[:16])   22 characters

Only the gateway holds the salt secret; gateway and engine hold the engine key. So the engine can refuse what the gateway
did not sign, and learns tenant, generation and trust domain (the salt), without being able to derive anybody's salt.
The alphabet `[A-Za-z0-9._-]` is what vLLM allows (no `@ / \\ NUL`) and safe as a file name for connectors that make one of it.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from .errors import ForgedToken, MalformedToken, MissingToken
from .identity import Sharing

MIN_SECRET_BYTES: Final = 32
MAX_TOKEN_LENGTH: Final = 128
MAX_GENERATION: Final = 10**15 - 1
_TAG_BYTES: Final = 16
_TOKEN: Final = re.compile(
    r"v1\.(?P<tenant>[a-z0-9](?:[-a-z0-9]{0,38}[a-z0-9])?)\.(?P<generation>[1-9][0-9]{0,14})"
    r"\.(?P<salt>[A-Za-z0-9_-]{43})\.(?P<tag>[A-Za-z0-9_-]{22})"
)


@dataclass(frozen=True, slots=True)
class Token:
    """A verified token. `salt` identifies the trust domain: two tokens share blocks if and only if it is equal."""

    tenant: str
    generation: int
    salt: str = field(repr=False)


def frame(*parts: str) -> bytes:
    """One byte string for a sequence of strings, injective: each part is preceded by its length in bytes (8, big-endian)."""
    encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
    return b"".join(len(part).to_bytes(8, "big") + part for part in encoded)


def b64url(data: bytes) -> str:
    """URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def unb64url(text: str) -> bytes:
    """The inverse of `b64url`.

    Raises:
        ValueError: not URL-safe base64.
    """
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def derive_salt(secret: bytes, *, deployment: str, generation: int, sharing: Sharing) -> str:
    """The salt of a trust domain: 43 characters, unguessable without `secret`, stable as long as its inputs are.

    Args:
        secret: at least 32 random bytes.
        deployment: the TenantPolicy's UID.
        generation: the tenant's salt generation, from 1.
        sharing: the trust domain.

    Raises:
        ValueError: the secret is too short.
    """
    if len(secret) < MIN_SECRET_BYTES:
        raise ValueError(f"the salt secret has {len(secret)} bytes: at least {MIN_SECRET_BYTES} are needed")
    message = frame("v1", deployment, sharing.tenant, str(generation), sharing.scope.value, *sharing.ids)
    return b64url(hmac.digest(secret, message, "sha256"))


def sign_token(engine_key: bytes, *, policy_uid: str, tenant: str, generation: int, salt: str) -> str:
    """The token that the engine accepts for this salt."""
    return f"v1.{tenant}.{generation}.{salt}.{_tag(engine_key, policy_uid, tenant, generation, salt)}"


def verify_token(text: object, *, engine_keys: Iterable[bytes], policy_uid: str) -> Token:
    """The token in a request's `cache_salt`, if one of our engine keys signed it.

    Whether its tenant and generation are still served is the policy's to say (`EnginePolicy.admit`).

    Raises:
        MissingToken, MalformedToken, ForgedToken: see `errors`.
    """
    if text is None or text == "":
        raise MissingToken("the request carries no cache_salt: send it through the gateway")
    if not isinstance(text, str) or len(text) > MAX_TOKEN_LENGTH or not (match := _TOKEN.fullmatch(text)):
        raise MalformedToken("the request's cache_salt is not a salt token: send it through the gateway")
    tenant, salt, generation = match["tenant"], match["salt"], int(match["generation"])
    accepted = False
    for key in engine_keys:  # every key is tried: the time taken tells nothing about which one signed
        accepted |= hmac.compare_digest(match["tag"], _tag(key, policy_uid, tenant, generation, salt))
    if not accepted:
        raise ForgedToken("the request's cache_salt is not signed by this deployment's gateway")
    return Token(tenant, generation, salt)


def _tag(engine_key: bytes, policy_uid: str, tenant: str, generation: int, salt: str) -> str:
    if len(engine_key) < MIN_SECRET_BYTES:
        raise ValueError(f"the engine key has {len(engine_key)} bytes: at least {MIN_SECRET_BYTES} are needed")
    return b64url(hmac.digest(engine_key, frame("tag", "v1", policy_uid, tenant, str(generation), salt), "sha256")[:_TAG_BYTES])
