"""The status of a TenantPolicy. Every field that the operator writes is declared: the apiserver prunes the others silently."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import ConfigDict, Field

from blockwarden_operator.rotation import MAX_ID_LENGTH, MAX_UNKNOWN, RotationPhase

from .base import ApiModel, list_map
from .conditions import Condition, Time
from .spec import MAX_TENANTS

Count = Annotated[int, Field(ge=0)]
Generation = Annotated[int, Field(ge=1)]
RotationId = Annotated[str, Field(max_length=MAX_ID_LENGTH)]
MAX_WAITING: Final = 128


class StatusModel(ApiModel):
    """A part of the status. Unlike the spec it may hold what a later version wrote, which is left out when read."""

    model_config = ConfigDict(extra="ignore")


class PodCount(StatusModel):
    """Pods of one component."""

    desired: Count = 0
    """As many as the spec asks for."""
    ready: Count = 0
    """As many as are ready and run this spec."""


class Replicas(StatusModel):
    """Pods of the deployment."""

    engine: PodCount = PodCount()
    """Engines."""
    gateway: PodCount = PodCount()
    """Gateways."""


class RotationStatus(StatusModel):
    """Where the rotation of salts is."""

    observed_id: RotationId | None = Field(None, alias="observedID")
    """The last id of the annotation blockwarden.dev/rotate-salt that was acted upon; one of more than 128 characters stands as
    `sha256:` and its digest."""
    tenant_ids: Annotated[dict[str, RotationId], Field(max_length=2 * MAX_TENANTS)] | None = Field(None, alias="tenantIDs")
    """The last ids of the annotations blockwarden.dev/rotate-salt.<tenant> that were acted upon, by tenant."""
    phase: RotationPhase = RotationPhase.IDLE
    """Idle; Distributing (gateways take up the new salts); Draining (requests under old salts end); Retiring (engines scrub what
    is left of the old generation)."""
    generation: Generation | None = None
    """The highest salt generation in use by any tenant."""
    forced: bool = False
    """Whether the rotation was forced by the loss of the keyring."""
    rotated_at: Time | None = None
    """When the last rotation began: the time since which no new request uses an older salt."""
    phase_since: Time | None = None
    """When the phase began."""
    deadline: Time | None = None
    """When Draining ends at the latest: requests still running under old salts are then ended."""
    unknown_tenants: Annotated[tuple[Annotated[str, Field(max_length=63)], ...], Field(max_length=MAX_UNKNOWN)] | None = None
    """Names in annotations blockwarden.dev/rotate-salt.<tenant> that are no tenant's: nothing rotates for them. The first 32."""
    waiting_for: Annotated[tuple[Annotated[str, Field(max_length=253)], ...], Field(max_length=MAX_WAITING)] | None = None
    """The pods that the phase waits for; the first 128 of them."""


class TenantStatus(StatusModel):
    """One tenant as it is served."""

    name: Annotated[str, Field(max_length=40)]
    """The tenant; `shared` stands for all tenants of scope None together."""
    api_key_secret: Annotated[str, Field(max_length=253)] | None = None
    """The Secret with the tenant's generated API key, under the key `api-key`; absent where the tenant brings its own."""
    salt_generation: Generation | None = None
    """The generation of the tenant's salts."""


class TenantPolicyStatus(StatusModel):
    """What the operator observed."""

    observed_generation: Count | None = None
    """The generation of the spec that the status is about."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16, json_schema_extra=list_map("type"))] = ()
    """Accepted, SecretsReady, NetworkIsolated, EngineReady, GatewayReady, IsolationVerified and Ready."""
    endpoint: Annotated[str, Field(max_length=512)] | None = None
    """The base URL of the OpenAI-compatible API within the cluster."""
    replicas: Replicas | None = None
    """Pods of the deployment."""
    tenant_count: Count | None = None
    """The number of tenants that are served."""
    rotation: RotationStatus | None = None
    """Where the rotation of salts is."""
    tenants: Annotated[
        tuple[TenantStatus, ...], Field(max_length=2 * MAX_TENANTS, json_schema_extra=list_map("name"))
    ] = ()  # fmt: skip
    """The tenants as they are served."""
