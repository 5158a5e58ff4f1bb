"""Who sends a request: the API key in its Authorization header. Pure, and done before the body is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from blockwarden_core.identity import Subject
from blockwarden_core.keys import api_key_digest

from .errors import Unauthenticated
from .headers import Headers
from .material import Material

MAX_KEY_LENGTH: Final = 512


def authenticate(headers: Headers, material: Material) -> Subject:
    """The subject of the request's API key.

    Keys are compared as SHA-256 digests: how long a look-up takes depends on the digest of the attempt, which tells nothing
    about any key.

    Raises:
        Unauthenticated: no key, several, or one that is not in force; all with the same answer.
    """
    key = _bearer(headers.all(b"authorization"))
    subject = material.subjects.get(api_key_digest(key)) if key else None
    if subject is None:
        raise Unauthenticated("no valid API key: send the header 'Authorization: Bearer <API key>'")
    return subject


def _bearer(values: Sequence[str]) -> str | None:
    if len(values) != 1:  # two of them: a proxy in between may have read the other one
        return None
    scheme, _, key = values[0].partition(" ")
    key = key.strip()
    return key if scheme.lower() == "bearer" and key.isascii() and len(key) <= MAX_KEY_LENGTH else None
