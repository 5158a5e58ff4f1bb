"""The spec of a TenantPolicy, and the rules that need more than one of its parts."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import ConfigDict, Field

from blockwarden_core.identity import Scope
from blockwarden_core.kv_transfer import IN_POD
from blockwarden_core.policy import MAX_GRACE_SECONDS

from .base import ApiModel, list_map, rule, rules
from .engine import Engine, cel_list
from .gateway import Gateway
from .kubernetes import Peers
from .model import Model
from .tenant import Tenant, cel_number

MAX_TENANTS: Final = 100
_WIDTHS: Final = "{" + ", ".join(f"'{scope}': {scope.width}" for scope in Scope) + "}"
_SCOPE: Final = "(has(t.scope) ? t.scope : self.isolation.scope)"
_EXTERNAL: Final = "(has({0}.engine.kvTransfer) && !({0}.engine.kvTransfer.connector in " + cel_list(sorted(IN_POD)) + "))"
_NAMESPACE: Final = "(has({0}.engine.kvTransfer.keyNamespace) ? {0}.engine.kvTransfer.keyNamespace : '')"


def _guaranteed(kind: str) -> str:
    """CEL: the sum of the guarantees that are percentages (`string`) or numbers of blocks (`int`)."""
    number = cel_number("t.kvCache.guaranteed", otherwise=0)
    return f"self.tenants.map(t, type(t.kvCache.guaranteed) == {kind}, {number}).sum()"


_RULES: Final = rules(
    rule(
        f"self.tenants.all(t, !has(t.scope) || {_WIDTHS}[t.scope] <= {_WIDTHS}[self.isolation.scope])",
        "spec.tenants[].scope: is wider than spec.isolation.scope: use that scope or a narrower one "
        "(from wide to narrow: None, Tenant, User, Session, Request)",
    ),
    rule(
        f"self.tenants.all(t, {_SCOPE} != 'User' || (has(t.apiKeys) && t.apiKeys.size() > 0 && t.apiKeys.all(k, has(k.user))))",
        "spec.tenants[].apiKeys: scope User needs keys that name their user: set user on every API key of the tenant",
    ),
    rule(
        f"{_guaranteed('string')} <= 100",
        "spec.tenants[].kvCache.guaranteed: the percentages add up to more than 100%: lower them",
    ),
    rule(
        f"!has(self.engine.kvCache.blocks) || {_guaranteed('int')} < self.engine.kvCache.blocks",
        "spec.tenants[].kvCache.guaranteed: they leave none of spec.engine.kvCache.blocks: lower them or raise blocks",
    ),
    rule(
        f"self.tenants.all(t, {_SCOPE} != 'None' || type(t.kvCache.guaranteed) == string) || "
        f"self.tenants.all(t, {_SCOPE} != 'None' || type(t.kvCache.guaranteed) == int)",
        "spec.tenants[].kvCache: tenants of scope None share one quota, and theirs mix blocks with percentages: use one unit",
    ),
    rule(
        f"self.model.source == oldSelf.model.source || !{_EXTERNAL.format('self')} || !{_EXTERNAL.format('oldSelf')} || "
        f"{_NAMESPACE.format('self')} != {_NAMESPACE.format('oldSelf')}",
        "spec.model.source: the external cache of spec.engine.kvTransfer holds blocks of the weights before: "
        "change keyNamespace with it (FusIOnX), or remove kvTransfer first and empty that cache",
    ),
)


class Isolation(ApiModel):
    """How tenants are kept apart."""

    scope: Scope = Scope.TENANT
    """The trust boundary within which prompts share cache: None (the whole deployment), Tenant, User, Session or Request.
    Tenants, and clients beneath their credential, may narrow it, never widen it."""
    expose_cached_tokens: bool = False
    """Whether answers tell clients how many of their prompt's tokens came from the cache."""
    deregistration_grace_seconds: Annotated[int, Field(ge=0, le=MAX_GRACE_SECONDS)] = 30
    """How long requests of a tenant that was removed may run on. New ones are refused at once; what still runs after that long is
    ended."""


class Monitoring(ApiModel):
    """Who may read metrics. They count for all tenants together and are a signal about each of them."""

    allow_from: Peers = ()
    """Who may connect to the internal ports of gateways (9090) and engines (9400); only the operator when empty."""


class TenantPolicySpec(ApiModel):
    """One isolated vLLM deployment and its tenants."""

    model_config = ConfigDict(json_schema_extra=_RULES)

    model: Model
    """The model that is served."""
    engine: Engine = Engine()
    """The vLLM engines."""
    gateway: Gateway = Gateway()
    """The salting gateways."""
    isolation: Isolation = Isolation()
    """How tenants are kept apart."""
    tenants: Annotated[tuple[Tenant, ...], Field(min_length=1, max_length=MAX_TENANTS, json_schema_extra=list_map("name"))]
    """The tenants. One that is removed is de-registered: its new requests are refused, those that run end within
    spec.isolation.deregistrationGraceSeconds, its blocks are scrubbed, and its quota is free for others."""
    monitoring: Monitoring = Monitoring()
    """Who may read metrics."""

    def granted(self, tenant: Tenant) -> Scope:
        """The scope that the policy gives a tenant."""
        return self.isolation.scope if tenant.scope is None else tenant.scope
