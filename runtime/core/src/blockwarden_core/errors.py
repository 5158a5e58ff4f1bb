"""Errors of blockwarden-core.

    BlockwardenError
    ├── TokenError (ValueError)      a cache_salt that the engine refuses; each has a stable `code` for the wire
    │   ├── MissingToken             no cache_salt, or an empty one
    │   ├── MalformedToken           not of the form v1.<tenant>.<generation>.<salt>.<tag>
    │   ├── ForgedToken              the tag is not ours
    │   ├── UnknownTenant            signed, but the policy in force has no such tenant
    │   └── RetiredToken             signed, but of a generation below the floor
    ├── DocumentError (ValueError)   a mounted document that cannot be used
    │   ├── UnsealedDocument         its MAC is missing or not ours
    │   └── StaleDocument            older than, or foreign to, the document in force
    └── ScopeError (ValueError)      a request for a scope that the subject may not have

No message ever holds a secret, a salt or a key: messages travel to clients, logs and status.
"""

from __future__ import annotations

from typing import ClassVar


class BlockwardenError(Exception):
    """Root of every error that blockwarden raises on purpose."""


class TokenError(BlockwardenError, ValueError):
    """The engine must not run a request that carries this cache_salt."""

    code: ClassVar[str] = "salt_refused"


class MissingToken(TokenError):
    code = "salt_missing"


class MalformedToken(TokenError):
    code = "salt_malformed"


class ForgedToken(TokenError):
    code = "salt_forged"


class UnknownTenant(TokenError):
    code = "tenant_unknown"


class RetiredToken(TokenError):
    code = "salt_retired"


class DocumentError(BlockwardenError, ValueError):
    """A mounted document cannot be used; whoever reads it keeps the last good one."""


class UnsealedDocument(DocumentError):
    """The document was not written by the holder of the engine key."""


class StaleDocument(DocumentError):
    """The document belongs to another policy, or its version does not rise."""


class ScopeError(BlockwardenError, ValueError):
    """The client asked for a sharing scope wider than its own, or for one that its subject cannot have."""
