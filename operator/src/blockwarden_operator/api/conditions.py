"""Conditions of a TenantPolicy and their reasons: closed lists, because people and alerts match on them.

Each condition is a fact that somebody can check, and True only where the fact holds for the spec of `observedGeneration`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field, PlainSerializer

from .base import ApiModel

MAX_MESSAGE: Final = 32768


def _rfc3339(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Time = Annotated[datetime, PlainSerializer(_rfc3339, return_type=str, when_used="json")]
"""A time as Kubernetes writes it: UTC, whole seconds."""


class ConditionType(StrEnum):
    """The conditions, in the order in which they become true."""

    ACCEPTED = "Accepted"
    """The spec can be taken into force. False: what ran goes on running, under the last accepted spec."""
    SECRETS_READY = "SecretsReady"
    """All key material is in place, and every API key of the spec identifies its subject."""
    NETWORK_ISOLATED = "NetworkIsolated"
    """Default deny is in force and a probe from outside was turned away."""
    ENGINE_READY = "EngineReady"
    """As many engines as asked for run this spec."""
    GATEWAY_READY = "GatewayReady"
    """As many gateways as asked for run this spec."""
    ISOLATION_VERIFIED = "IsolationVerified"
    """Every gateway has attested every engine: unsalted, forged and retired requests refused, scopes apart."""
    READY = "Ready"
    """All of the above."""


class AcceptedReason(StrEnum):
    """Why a spec is, or is not, in force."""

    ACCEPTED = "Accepted"
    UNREADABLE = "Unreadable"
    """The stored object is not what this operator's version of the API allows."""
    ENGINE_ARGUMENT_REFUSED = "EngineArgumentRefused"
    ENVIRONMENT_REFUSED = "EnvironmentRefused"
    IMAGE_REFUSED = "ImageRefused"
    NAME_RESERVED = "NameReserved"
    SCOPE_WIDENED = "ScopeWidened"
    USER_MISSING = "UserMissing"
    QUOTA_EXCEEDED = "QuotaExceeded"
    MODEL_SOURCE_REFUSED = "ModelSourceRefused"
    MODEL_SOURCE_MISSING = "ModelSourceMissing"
    SECRET_MISSING = "SecretMissing"  # noqa: S105 - a reason
    SECRET_REFUSED = "SecretRefused"  # noqa: S105 - a reason
    OBJECT_NAME_TAKEN = "ObjectNameTaken"
    OBJECT_REFUSED = "ObjectRefused"
    """The apiserver, a quota or an admission webhook does not take an object that follows from the spec."""


class SecretsReason(StrEnum):
    """Whether all key material is in place."""

    PROVISIONED = "Provisioned"
    API_KEY_REFUSED = "ApiKeyRefused"
    """An API key is missing, weak or shared: it is not accepted from clients, the others are."""
    KEYRING_LOST = "KeyringLost"
    """The salt keyring was gone: every salt is rotating."""


class WorkloadReason(StrEnum):
    """Whether the engines, or the gateways, run this spec."""

    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    WEIGHTS_PENDING = "WeightsPending"
    WEIGHTS_FAILED = "WeightsFailed"
    FAILED = "Failed"
    SCALED_TO_ZERO = "ScaledToZero"


class NetworkReason(StrEnum):
    """Whether the network keeps others away."""

    ENFORCED = "Enforced"
    PENDING = "Pending"
    NOT_ENFORCED = "NotEnforced"
    """A probe that must fail connected: the cluster's network plug-in does not enforce NetworkPolicies."""
    PROBE_FAILED = "ProbeFailed"


class IsolationReason(StrEnum):
    """Whether the engines have been attested."""

    ATTESTED = "Attested"
    PENDING = "Pending"
    ATTESTATION_FAILED = "AttestationFailed"
    POLICY_NOT_IN_FORCE = "PolicyNotInForce"


class ReadyReason(StrEnum):
    """Why the deployment is ready; where it is not, Ready has the reason of the first condition that is not true."""

    READY = "Ready"


class Condition(ApiModel):
    """One aspect of the TenantPolicy's state."""

    type: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9]*$", max_length=316)]
    """The aspect."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The generation of the spec that this is about."""
    last_transition_time: Time
    """When status last changed."""
    reason: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9]*$", min_length=1, max_length=1024)]
    """Why, in one word."""
    message: Annotated[str, Field(max_length=MAX_MESSAGE)]
    """Why, in a sentence with the field's path and the mend where there is one."""
