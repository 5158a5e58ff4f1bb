"""The TenantPolicy as a whole, and how the operator reads one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError

from blockwarden_core.document import first_problem
from blockwarden_operator.errors import InvalidPolicy

from .base import ApiModel, rule, rules
from .spec import TenantPolicySpec
from .status import TenantPolicyStatus

NAME_RULE = rules(
    rule(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$')",
        "metadata.name: Services and certificates are named after it: use at most 40 lower-case letters, digits and hyphens, "
        "beginning with a letter",
    )
)


class Metadata(ApiModel):
    """As much of the object's metadata as identifies a spec; the rest belongs to others."""

    model_config = ConfigDict(extra="ignore")

    name: str
    namespace: str
    uid: str
    generation: Annotated[int, Field(ge=0)]


class TenantPolicy(ApiModel):
    """A TenantPolicy is one isolated vLLM deployment and its tenants: gateways that salt every request from its authenticated
    tenant, engines that keep tenants' KV blocks apart, and the secrets and network policies around them."""

    model_config = ConfigDict(json_schema_extra=NAME_RULE)

    api_version: Literal["blockwarden.dev/v1alpha1"] = "blockwarden.dev/v1alpha1"
    kind: Literal["TenantPolicy"] = "TenantPolicy"
    metadata: Metadata
    spec: TenantPolicySpec
    status: TenantPolicyStatus = TenantPolicyStatus()

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Self:
        """The TenantPolicy in an object of the apiserver.

        Raises:
            InvalidPolicy: not what this version of the API allows; the message names the first wrong field, never its value.
        """
        try:
            return cls.model_validate(manifest)
        except ValidationError as error:
            raise InvalidPolicy(first_problem(error)) from None
