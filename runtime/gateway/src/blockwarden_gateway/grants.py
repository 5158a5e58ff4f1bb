"""What an authenticated request may do: its tenant, the trust domain whose cache it shares, the model it names. Pure."""

from __future__ import annotations

from collections.abc import Callable

from blockwarden_core import layout
from blockwarden_core.errors import ScopeError
from blockwarden_core.identity import Scope, Sharing, Subject, narrow, sharing_for
from blockwarden_core.policy import GatewayPolicy, GatewayTenant, ModelAlias

from .errors import InvalidRequest, NoSuchModel, ScopeRefused
from .headers import Headers


def resolve_sharing(subject: Subject, granted: Scope, headers: Headers, nonce: Callable[[], str]) -> Sharing:
    """The trust domain of one request: what the policy grants, narrowed by the client's own headers.

    Args:
        nonce: draws at least 128 random bits, hexadecimal; called for scope Request.

    Raises:
        InvalidRequest: a header that names no scope, or a session id that is missing, empty or too long.
        ScopeRefused: a wider scope than granted, or scope User with a key that names no user.
    """
    wanted, session = _wanted(headers.one(layout.SCOPE_HEADER)), headers.one(layout.SESSION_HEADER)
    try:
        scope = narrow(granted, wanted, session=session)
        return sharing_for(subject, granted=granted, scope=scope, session=session, nonce=nonce())
    except ScopeError as error:
        if wanted is not None and not granted.may_narrow_to(wanted):
            raise ScopeRefused(str(error), param=layout.SCOPE_HEADER) from None
        if not subject.user and (wanted or granted) is Scope.USER:
            raise ScopeRefused(str(error), param=layout.SCOPE_HEADER) from None
        raise InvalidRequest(str(error), param=layout.SESSION_HEADER) from None


def _wanted(value: str | None) -> Scope | None:
    if value is None:
        return None
    try:
        return Scope(value)
    except ValueError:
        names = ", ".join(scope.value for scope in Scope)
        raise InvalidRequest(
            f"header {layout.SCOPE_HEADER} names no scope: send one of {names}", param=layout.SCOPE_HEADER
        ) from None


def models_of(tenant: GatewayTenant, policy: GatewayPolicy) -> tuple[ModelAlias, ...]:
    """The models that a tenant may name."""
    return tenant.models or (ModelAlias(name=policy.model, served=policy.model),)


def served_model(name: str, tenant: GatewayTenant, policy: GatewayPolicy) -> str:
    """The engine's name of the model that a tenant calls `name`.

    Raises:
        NoSuchModel: the same answer for a model of somebody else and for one that does not exist.
    """
    for alias in models_of(tenant, policy):
        if alias.name == name:
            return alias.served
    raise NoSuchModel("there is no such model for this API key: GET /v1/models lists those there are", param="model")
