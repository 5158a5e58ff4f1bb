"""What every model of the TenantPolicy API shares: strictness, the form that goes into manifests, and how a model says what
the apiserver must check.

The models are the one source of the CRD (`blockwarden_operator.crd`): constraints, docstrings and the rules declared with
`rule` become the schema, so an attribute's docstring is the text that `kubectl explain` shows.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from blockwarden_core.document import Document

NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
RULES: Final = "x-kubernetes-validations"


class ApiModel(Document):
    """A frozen part of a TenantPolicy. Unknown fields are refused: what the operator does not know it cannot honour."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    def manifest(self) -> dict[str, Any]:
        """The value as it stands in a manifest: camelCase, without what was left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def rule(expression: str, message: str, *, precise: str | None = None) -> JsonDict:
    """A CEL rule. The message names the field and the mend; `precise` is CEL for a message that names the culprit as well."""
    plain: JsonDict = {"rule": expression, "message": message}
    return {**plain, "messageExpression": precise} if precise else plain


def rules(*of: JsonDict) -> JsonDict:
    """The schema extension that holds CEL rules; for a model's `json_schema_extra` or a field's."""
    return {RULES: list(of)}


def list_map(*keys: str) -> JsonDict:
    """The schema extension of a list whose items are told apart by `keys`: unique, and merged by server-side apply."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


ATOMIC: Final[JsonDict] = {"x-kubernetes-list-type": "atomic"}

ObjectName = Annotated[str, Field(pattern=NAME_PATTERN, min_length=1, max_length=253)]
"""The name of a Kubernetes object."""
Quantity = Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=r"^[0-9]+([.][0-9]+)?(m|k|Ki|[MGTPE]i?)?$", max_length=32)]
"""A Kubernetes quantity: `2`, `500m`, `16Gi`."""
Image = Annotated[
    str,
    Field(
        max_length=512,
        pattern=(
            r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
            r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$"
        ),
        json_schema_extra=rules(
            rule(
                "self.matches('(:[A-Za-z0-9_][A-Za-z0-9_.-]*|@sha256:[0-9a-f]{64})$') && !self.endsWith(':latest')",
                "image: names a moving image: end it with a version tag other than latest, or with @sha256:<digest>",
            )
        ),
    ),
]
"""A container image, pinned by tag or digest."""


class SecretKeyRef(ApiModel):
    """One key of a Secret in the TenantPolicy's namespace."""

    name: ObjectName
    """The Secret's name."""
    key: Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)]
    """The key within the Secret's data."""
