"""Who a request is for and with whom it may share cache: subjects and scopes.

A scope is a trust boundary. From wide to narrow: None (the whole deployment), Tenant, User, Session, Request. A client may
narrow its scope beneath its authenticated subject and never widen it; the ids that go into the salt always begin with the
authenticated tenant and user, so that a header can only ever sub-divide what is the client's own.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import StringConstraints

from .errors import ScopeError

TENANT_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$"
SHARED_TENANT: Final = "shared"
"""The tenant in the token of every request with scope None: one salt, one quota (the sum of its members' quotas)."""
CANARY_TENANT: Final = "canary"
"""The tenant of the gateway's attestation probes: a small quota of its own, no API key."""
RESERVED_TENANTS: Final = frozenset({SHARED_TENANT, CANARY_TENANT})
MAX_ID_LENGTH: Final = 256

TenantName = Annotated[str, StringConstraints(pattern=TENANT_PATTERN, max_length=40)]


class Scope(enum.StrEnum):
    """The trust boundary within which prompts share KV blocks."""

    NONE = "None"
    TENANT = "Tenant"
    USER = "User"
    SESSION = "Session"
    REQUEST = "Request"

    @property
    def width(self) -> int:
        """0 for the narrowest; a client may ask for any scope of at most its own width."""
        return _WIDTH[self]

    def may_narrow_to(self, other: Scope) -> bool:
        """Whether `other` is this scope or a narrower one."""
        return other.width <= self.width


_WIDTH: Final = {scope: width for width, scope in enumerate(reversed(Scope))}


@dataclass(frozen=True, slots=True)
class Subject:
    """An authenticated client: its tenant, and the user within it where the credential names one."""

    tenant: str
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Sharing:
    """What a salt is derived from: the tenant in the token, the scope, and the ids that identify its trust domain."""

    tenant: str
    scope: Scope
    ids: tuple[str, ...]


def narrow(granted: Scope, wanted: Scope | None, *, session: str | None) -> Scope:
    """The scope in force for one request, at most as wide as `granted`.

    A session id alone asks for scope Session where that is narrower than what was granted.

    Raises:
        ScopeError: the client asked for a wider scope, or for Session without naming one.
    """
    if wanted is None:
        wanted = Scope.SESSION if session is not None and granted.may_narrow_to(Scope.SESSION) else granted
    elif wanted is Scope.SESSION and session is None:
        raise ScopeError("scope Session needs a session id: send the header X-Blockwarden-Session")
    if not granted.may_narrow_to(wanted):
        raise ScopeError(f"scope {wanted} is wider than the granted scope {granted}: ask for {granted} or a narrower one")
    return wanted


def sharing_for(subject: Subject, *, granted: Scope, scope: Scope, session: str | None, nonce: str) -> Sharing:
    """The trust domain of one request.

    Args:
        subject: who authenticated.
        granted: the scope that the policy gives the tenant; decides whose quota pays.
        scope: the scope in force, from `narrow`.
        session: the client's session id. A granted scope Session without one is served as scope Request: narrower, hence safe.
        nonce: at least 128 fresh random bits, hexadecimal; used by scope Request only.

    Raises:
        ScopeError: scope User for a subject without a user, or an id that is empty or too long.
    """
    payer = SHARED_TENANT if granted is Scope.NONE else subject.tenant
    if scope is Scope.SESSION and session is None:
        scope = Scope.REQUEST
    if scope is Scope.USER and not subject.user:
        raise ScopeError("scope User needs a credential that names its user: give the API key a user in the policy")
    owner = (subject.tenant, subject.user or "")
    ids: dict[Scope, tuple[str, ...]] = {
        Scope.NONE: (),
        Scope.TENANT: (subject.tenant,),
        Scope.USER: owner,
        Scope.SESSION: (*owner, session or ""),
        Scope.REQUEST: (*owner, nonce),
    }
    if any(len(part) > MAX_ID_LENGTH for part in ids[scope]):
        raise ScopeError(f"a session or user id is at most {MAX_ID_LENGTH} characters long: send a shorter one")
    if scope in (Scope.SESSION, Scope.REQUEST) and not ids[scope][-1]:
        raise ScopeError("a session id must not be empty: leave the header out or send an id")
    return Sharing(payer, scope, ids[scope])
