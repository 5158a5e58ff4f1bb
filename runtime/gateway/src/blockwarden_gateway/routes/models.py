"""GET /v1/models and /v1/models/{name}: the models that a tenant may name. Pure; no engine is asked.

An engine would list every adapter by name and path; a tenant sees its own aliases only.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from blockwarden_core.policy import GatewayPolicy, GatewayTenant
from blockwarden_gateway.grants import models_of, served_model

NAME: Final = "models"
PATH: Final = "/v1/models"


def render_models(tenant: GatewayTenant, policy: GatewayPolicy) -> bytes:
    """The list."""
    data = [_model(alias.name, tenant) for alias in models_of(tenant, policy)]
    return msgspec.json.encode({"object": "list", "data": data})


def render_model(name: str, tenant: GatewayTenant, policy: GatewayPolicy) -> bytes:
    """One model.

    Raises:
        NoSuchModel: the tenant has none of this name.
    """
    served_model(name, tenant, policy)
    return msgspec.json.encode(_model(name, tenant))


def _model(name: str, tenant: GatewayTenant) -> dict[str, Any]:
    # `created` is part of the shape; nothing here knows when a model was made.
    return {"id": name, "object": "model", "created": 0, "owned_by": tenant.name}
