"""Documents that only a holder of the engine key can have written: a MAC over their exact bytes.

What lies in a ConfigMap can be edited by more hands than what lies in a Secret. A seal binds such a document to the engine key
and to its kind, so that a sealed document of one kind never passes for one of another. It does not bind it to a TenantPolicy or
to a moment: a document that needs either says so in its payload, and its reader checks it.
"""

from __future__ import annotations

import hmac

from .document import Document
from .errors import UnsealedDocument
from .keys import EngineKeys
from .salt import b64url, frame


class Sealed(Document):
    """A document with a MAC over its exact bytes."""

    payload: str
    key_id: str
    mac: str


def seal(kind: str, payload: str, keys: EngineKeys) -> str:
    """The text of a sealed document, the same for the same payload and key."""
    key = keys.signing
    return Sealed(payload=payload, key_id=key.id, mac=_mac(key.key.get_secret_value(), kind, payload)).text()


def open_sealed(kind: str, text: str | bytes, keys: EngineKeys) -> str:
    """The payload of a sealed document.

    Raises:
        DocumentError: unreadable. UnsealedDocument: not sealed as this kind by one of `keys`.
    """
    sealed = Sealed.read(text)
    mac = sealed.mac.encode()  # as bytes: compare_digest raises TypeError for text outside ASCII
    if not any(hmac.compare_digest(mac, _mac(key, kind, sealed.payload).encode()) for key in keys.accepted):
        raise UnsealedDocument(f"{kind}: not sealed under this deployment's engine key")
    return sealed.payload


def _mac(key: bytes, kind: str, payload: str) -> str:
    return b64url(hmac.digest(key, frame(kind, "v1", payload), "sha256"))
