"""What gateways and engines report: on their internal ports to the operator, and on attestation to the gateway.

Reports hold names, numbers and identifiers; never a prompt, a salt, a token or a key.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from .document import Document


class EngineSeen(Document):
    """An engine endpoint as one gateway sees it. Traffic goes to it only while `attested`."""

    address: str
    pod_uid: str | None
    boot_nonce: str | None
    attested: bool
    reason: str


class GatewayReport(Document):
    """`GET /status` on a gateway's internal port.

    `in_flight` counts dispatched requests whose last byte has not been sent, by tenant and generation (as a string).
    """

    kind: Literal["GatewayReport"] = "GatewayReport"
    pod_uid: str
    policy_version: int
    secret_id: str
    generations: dict[str, int]
    in_flight: dict[str, dict[str, int]]
    engines: tuple[EngineSeen, ...]
    reload_error: str | None = None


class TenantState(StrEnum):
    """Where a tenant is between its registration and its last scrubbed block."""

    SERVING = "Serving"
    """The policy in force has it."""
    DRAINING = "Draining"
    """It was de-registered, and its requests may run on for the policy's grace period."""
    CLEARING = "Clearing"
    """It was de-registered and has no requests any more, but blocks that are not confirmed zero yet."""


class TenantBlocks(Document):
    """One tenant's blocks in one engine.

    `cached_blocks` are those of `owned_blocks` that no request uses. `counters` are monotonic for as long as the engine knows the
    tenant; what stands behind a dot in their names is a reason.

    `stale_blocks` counts blocks of generations below the floor that are not yet confirmed zero (owned, dirty or being scrubbed);
    `stale_requests` counts unfinished requests of such generations.
    """

    name: str
    generation: int
    floor: int
    guaranteed_blocks: int
    limit_blocks: int
    owned_blocks: int
    running: int
    waiting: int
    stale_blocks: int
    stale_requests: int
    state: TenantState = TenantState.SERVING
    cached_blocks: int = 0
    counters: dict[str, int] = Field(default_factory=dict)


class PoolBlocks(Document):
    """All blocks of one engine by state; they add up to `total` (the null block is not counted). `cached` is part of `owned`."""

    total: int
    clean: int
    owned: int
    dirty: int
    scrubbing: int
    cached: int = 0


class Distribution(Document):
    """A histogram: `counts` has one observation count for each of `bounds`, each counted once, and one for what is above."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)
    total: float = 0.0


class ScrubCounters(Document):
    """What an engine has scrubbed since `boot_nonce` was drawn.

    `epochs_ordered` and `epochs_confirmed` differ by what is under way. `blocks` and `bytes` count what changed its owner, in
    all ranks; `blocks_in_place` what was zeroed for its own owner. `backlog` counts blocks that are freed and not yet clean.
    """

    epochs_ordered: int = 0
    epochs_confirmed: int = 0
    blocks: int = 0
    blocks_in_place: int = 0
    bytes: int = 0
    bytes_in_place: int = 0
    backlog: int = 0


class RefusalCount(Document):
    """How many requests were refused at admission for one reason; `tenant` is empty where none was verified."""

    tenant: str
    reason: str
    count: int


class EngineReport(Document):
    """`GET /status` on an engine's internal port. `counters` are monotonic since `boot_nonce` was drawn.

    `free_to_clean_*` is the time that freed blocks took until their zeroes were confirmed. `reload_errors` counts mounted
    policies that could not be used, by the name of the error.
    """

    kind: Literal["EngineReport"] = "EngineReport"
    pod_uid: str
    boot_nonce: str
    policy_version: int
    pool: PoolBlocks
    tenants: tuple[TenantBlocks, ...]
    counters: dict[str, int]
    reload_error: str | None = None
    reload_errors: dict[str, int] = Field(default_factory=dict)
    scrub: ScrubCounters = ScrubCounters()
    free_to_clean_steps: Distribution = Distribution()
    free_to_clean_seconds: Distribution = Distribution()
    refusals: tuple[RefusalCount, ...] = ()


class Attestation(Document):
    """`GET ATTESTATION_PATH` on the engine API port: what is enforced here, and by which code.

    `hooks` maps each hook of vLLM that isolation depends on to the fingerprint of the source it replaced; the gateway
    compares their names with the recorded set. The versions are for people: a gateway logs and counts them. It judges an
    engine by what it does, or no upgrade could go pod by pod.
    """

    kind: Literal["Attestation"] = "Attestation"
    pod_uid: str
    boot_nonce: str
    policy_uid: str
    policy_version: int
    plugin_version: str
    engine_version: str
    hooks: dict[str, str]
    scrub: ScrubCounters = ScrubCounters()
