"""A tenant: who it is, how far it shares its own cache, and how much of the engine is its own."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import ConfigDict, Field

from blockwarden_core.engine_args import SERVED_NAME, WORD
from blockwarden_core.identity import RESERVED_TENANTS, TENANT_PATTERN, Scope
from blockwarden_core.policy import Percent

from .base import ApiModel, SecretKeyRef, list_map, rule, rules

Amount = Annotated[int, Field(ge=0, le=1_000_000_000)] | Annotated[Percent, Field(max_length=4)]
"""Blocks, or a percentage. Bounded, or the apiserver would find the rules below too costly."""

_PERCENT_ABOVE_ZERO: Final = r"^(100|[1-9][0-9]?)%$"
_SAME_UNIT: Final = "(type(self.limit) == string) == (type(self.guaranteed) == string)"


def cel_number(amount: str, *, otherwise: int) -> str:
    """CEL: the number in an Amount. `otherwise` stands for one that the schema refuses already: rules run on those too, and an
    error of theirs would be added to the refusal."""
    return f"(string({amount}).matches('^[0-9]{{1,10}}%?$') ? int(string({amount}).replace('%', '')) : {otherwise})"


_LIMIT: Final = cel_number("self.limit", otherwise=2**31)
_GUARANTEED: Final = cel_number("self.guaranteed", otherwise=0)
_MOST: Final = cel_number("(has(self.limit) ? self.limit : self.guaranteed)", otherwise=1)


class ApiKeySource(ApiModel):
    """An API key that the tenant brings. Two of them side by side let a client change keys without a gap."""

    name: Annotated[str, Field(pattern=TENANT_PATTERN, max_length=40)]
    """A name for the key, unique within the tenant; it shows in conditions."""
    user: Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")] | None = None
    """The user within the tenant whom the key identifies. Needed for scope User."""
    secret_ref: SecretKeyRef
    """Where the key is: at least 32 printable ASCII characters, random, used for one subject only."""


class ModelName(ApiModel):
    """A model name that a tenant may use for the served model, or for an adapter of it."""

    name: Annotated[str, Field(pattern=f"^{SERVED_NAME}$", max_length=128)]
    """The name."""
    adapter: Annotated[str, Field(pattern=f"^{WORD}$", max_length=64)] | None = None
    """The LoRA adapter that the name stands for, as `--lora-modules` in `spec.engine.extraArgs` calls it; the served model itself
    when left out."""


class KvShare(ApiModel):
    """A tenant's share of the KV cache of every engine, in blocks or as a percentage such as 40%. Numbers of blocks are taken
    first, percentages are of the pool that remains."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                f"!has(self.limit) || {_SAME_UNIT}",
                "spec.tenants[].kvCache: guaranteed and limit have different units: write both in blocks or both in percent",
            ),
            rule(
                f"!has(self.limit) || !({_SAME_UNIT}) || {_LIMIT} >= {_GUARANTEED}",
                "spec.tenants[].kvCache.limit: is below guaranteed: raise limit, lower guaranteed, or leave limit out",
            ),
            rule(
                f"{_MOST} > 0",
                "spec.tenants[].kvCache: the tenant may hold no block at all: raise guaranteed or limit above zero",
            ),
        )
    )

    guaranteed: Amount
    """What is the tenant's at all times, whatever others do."""
    limit: Amount | None = None
    """What the tenant may hold at most; as much as guaranteed when left out, which is a hard partition. More than guaranteed
    borrows from what nobody is guaranteed."""

    @property
    def effective_limit(self) -> int | str:
        """The limit in force."""
        return self.guaranteed if self.limit is None else self.limit


class TenantLimits(ApiModel):
    """Limits of a tenant; no limit where one is left out. The first three count in each
    gateway pod, the others in each engine."""

    concurrent_requests: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests at one time."""
    requests_per_minute: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Requests in a minute."""
    tokens_per_minute: Annotated[int, Field(ge=1, le=1_000_000_000_000)] | None = None
    """Tokens in a minute, of prompts and answers together."""
    max_sequences: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Sequences that an engine runs at one time."""
    max_batched_tokens_share: Annotated[str, Field(pattern=_PERCENT_ABOVE_ZERO, max_length=4)] | None = None
    """The part of an engine step's tokens, as a percentage such as 50%."""


class Tenant(ApiModel):
    """One tenant of the deployment."""

    name: Annotated[
        str,
        Field(
            pattern=TENANT_PATTERN,
            max_length=40,
            json_schema_extra=rules(
                rule(
                    "!(self in [" + ", ".join(f"'{name}'" for name in sorted(RESERVED_TENANTS)) + "])",
                    "spec.tenants[].name: "
                    + " and ".join(sorted(RESERVED_TENANTS))
                    + " are reserved for blockwarden itself: choose another name",
                )
            ),
        ),
    ]
    """The tenant's name: a DNS label of at most 40 characters. It goes into the salt, so a renamed tenant starts with an empty
    cache."""
    scope: Scope | None = None
    """The trust boundary within which the tenant's prompts share cache; the policy's when left out. It may be narrower than the
    policy's, never wider."""
    api_keys: Annotated[tuple[ApiKeySource, ...], Field(max_length=64, json_schema_extra=list_map("name"))] = ()
    """The tenant's API keys. When left out the operator generates one, in the Secret that status.tenants names."""
    models: Annotated[tuple[ModelName, ...], Field(max_length=32, json_schema_extra=list_map("name"))] = ()
    """The model names that the tenant may use, each standing for the served model or an adapter of it; only the served model's
    own name when left out."""
    kv_cache: KvShare
    """The tenant's share of the KV cache."""
    limits: TenantLimits = TenantLimits()
    """The tenant's limits."""
