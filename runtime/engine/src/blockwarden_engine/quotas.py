"""From an engine policy to numbers of blocks: who is guaranteed what in a pool of a given size. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from blockwarden_core.policy import EnginePolicy, TenantShare, blocks_of

from .errors import PolicyTooLarge


@dataclass(frozen=True, slots=True)
class Quota:
    """One tenant's part of a pool, in blocks, and the salt generations that it may use.

    Attributes:
        guaranteed: blocks that no other tenant can hold for longer than a scrub takes.
        limit: blocks that the tenant can hold at most; what exceeds `guaranteed` is borrowed.
        capacity: blocks that the tenant can hold when nobody else holds more than its guarantee.
        generation: blocks of an older salt generation do not stay cached.
        floor: requests and blocks of an older salt generation must go.
    """

    guaranteed: int
    limit: int
    capacity: int
    generation: int
    floor: int


def plan_quotas(policy: EnginePolicy, pool: int) -> dict[str, Quota]:
    """The quota of each tenant in a pool of `pool` blocks (the null block not counted).

    Absolute amounts are taken first; percentages, of guarantees and of limits, are of the rest.

    Raises:
        PolicyTooLarge: the guarantees exceed the pool, or a limit is below its guarantee in this pool.
    """
    absolute = sum(share.guaranteed for share in policy.tenants if isinstance(share.guaranteed, int))
    rest = pool - absolute
    if rest < 0:
        raise PolicyTooLarge(f"EnginePolicy: tenants: {absolute} blocks are guaranteed and the pool has {pool}: lower guaranteed")
    guaranteed = {share.name: blocks_of(share.guaranteed, rest) for share in policy.tenants}
    total = sum(guaranteed.values())
    if total > pool:
        raise PolicyTooLarge(f"EnginePolicy: tenants: {total} blocks are guaranteed and the pool has {pool}: lower guaranteed")
    return {share.name: _quota(share, guaranteed[share.name], rest, pool, pool - total) for share in policy.tenants}


def _quota(share: TenantShare, guaranteed: int, rest: int, pool: int, spare: int) -> Quota:
    limit = min(blocks_of(share.limit, rest), pool)
    if limit < guaranteed:
        raise PolicyTooLarge(
            f"EnginePolicy: tenants.{share.name}.limit: {limit} of {pool} blocks, but {guaranteed} are guaranteed: raise it"
        )
    return Quota(guaranteed, limit, min(limit, guaranteed + spare), share.generation, share.floor)
