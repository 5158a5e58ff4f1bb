"""What gateways and engines report: on their internal ports to the operator, and on attestation to the gateway.

Reports hold names, numbers and identifiers; never a prompt, a salt, a token or a key.
"""

from __future__ import annotations

from typing import Literal

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


class TenantBlocks(Document):
    """One tenant's blocks in one engine.

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


class PoolBlocks(Document):
    """All blocks of one engine by state; they add up to `total` (the null block is not counted)."""

    total: int
    clean: int
    owned: int
    dirty: int
    scrubbing: int


class EngineReport(Document):
    """`GET /status` on an engine's internal port. `counters` are monotonic since `boot_nonce` was drawn."""

    kind: Literal["EngineReport"] = "EngineReport"
    pod_uid: str
    boot_nonce: str
    policy_version: int
    pool: PoolBlocks
    tenants: tuple[TenantBlocks, ...]
    counters: dict[str, int]
    reload_error: str | None = None


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
