"""What gateways and engines are told: the contents of the two mounted policy documents. Pure.

Tenants of scope None share one salt and therefore one share, `shared`; the gateways' probes have one of their own, `canary`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from blockwarden_core.identity import CANARY_TENANT, SHARED_TENANT, Scope
from blockwarden_core.layout import ENGINE_API_PORT
from blockwarden_core.policy import (
    MIN_MODEL_LEN,
    EngineAddress,
    EnginePolicy,
    GatewayPolicy,
    GatewayTenant,
    Limits,
    ModelAlias,
    TenantShare,
)
from blockwarden_operator.api import Tenant, TenantPolicySpec

from .names import Component, Owner

SMALLEST_BLOCK: Final = 16


def canary_blocks(spec: TenantPolicySpec) -> int:
    """The blocks kept for the gateways' probes in every engine: two probes side by side, and one block to spare for each."""
    block_size = spec.engine.kv_cache.block_size or SMALLEST_BLOCK
    return 2 * (math.ceil(MIN_MODEL_LEN / block_size) + 1)


def payers(spec: TenantPolicySpec) -> dict[str, str]:
    """For each tenant the tenant in its tokens, whose share pays for its blocks."""
    return {tenant.name: SHARED_TENANT if spec.granted(tenant) is Scope.NONE else tenant.name for tenant in spec.tenants}


def render_engine_policy(
    spec: TenantPolicySpec, owner: Owner, served: Mapping[str, tuple[int, int]], version: int
) -> EnginePolicy:
    """What engines enforce.

    Args:
        served: (generation, floor) by token tenant, from `rotation.served_generations`.
    """
    own = [tenant for tenant in spec.tenants if spec.granted(tenant) is not Scope.NONE]
    members = [tenant for tenant in spec.tenants if spec.granted(tenant) is Scope.NONE]
    blocks = canary_blocks(spec)
    shares = [_share(tenant, served[tenant.name]) for tenant in own]
    if members:
        shares.append(_shared(members, served[SHARED_TENANT]))
    generation, floor = served[CANARY_TENANT]
    shares.append(TenantShare(name=CANARY_TENANT, guaranteed=blocks, limit=blocks, generation=generation, floor=floor))
    return EnginePolicy(policy_uid=owner.uid, version=version, tenants=tuple(shares))


def render_gateway_policy(spec: TenantPolicySpec, owner: Owner, version: int) -> GatewayPolicy:
    """What gateways enforce."""
    return GatewayPolicy(
        policy_uid=owner.uid,
        version=version,
        model=spec.model.name,
        engine=EngineAddress(
            host=owner.server_name(Component.ENGINE),
            port=ENGINE_API_PORT,
            server_name=owner.server_name(Component.ENGINE),
        ),
        tenants=tuple(_gateway_tenant(spec, tenant) for tenant in spec.tenants),
        expose_cached_tokens=spec.isolation.expose_cached_tokens,
    )


def _gateway_tenant(spec: TenantPolicySpec, tenant: Tenant) -> GatewayTenant:
    return GatewayTenant(
        name=tenant.name,
        scope=spec.granted(tenant),
        models=tuple(ModelAlias(name=model.name, served=model.adapter or spec.model.name) for model in tenant.models),
        limits=Limits(
            concurrent_requests=tenant.limits.concurrent_requests,
            requests_per_minute=tenant.limits.requests_per_minute,
            tokens_per_minute=tenant.limits.tokens_per_minute,
        ),
    )


def _share(tenant: Tenant, served: tuple[int, int]) -> TenantShare:
    return TenantShare(
        name=tenant.name,
        guaranteed=tenant.kv_cache.guaranteed,
        limit=tenant.kv_cache.effective_limit,
        generation=served[0],
        floor=served[1],
        max_sequences=tenant.limits.max_sequences,
        max_batched_tokens_share=tenant.limits.max_batched_tokens_share,
    )


def _shared(members: Sequence[Tenant], served: tuple[int, int]) -> TenantShare:
    """One share for all members: their amounts added up, and no cap where one of them has none."""
    sequences = [member.limits.max_sequences for member in members]
    steps = [member.limits.max_batched_tokens_share for member in members]
    return TenantShare(
        name=SHARED_TENANT,
        guaranteed=_sum(member.kv_cache.guaranteed for member in members),
        limit=_sum(member.kv_cache.effective_limit for member in members),
        generation=served[0],
        floor=served[1],
        max_sequences=None if None in sequences else sum(count for count in sequences if count is not None),
        max_batched_tokens_share=None if None in steps else str(_sum(step for step in steps if step is not None)),
    )


def _sum(amounts: Iterable[int | str]) -> int | str:
    """Amounts of one unit added up; percentages end at 100%."""
    listed = list(amounts)
    if all(isinstance(amount, int) for amount in listed):
        return sum(int(amount) for amount in listed)
    return f"{min(100, sum(int(str(amount).removesuffix('%')) for amount in listed))}%"
