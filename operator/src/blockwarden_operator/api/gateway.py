"""How a TenantPolicy's gateways run and who may reach them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import ApiModel, Image, ObjectName
from .kubernetes import Peers, Resources
from .template import PodTemplate


class GatewayService(ApiModel):
    """The Service in front of the gateways. It only ever carries the public port."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """The Service's type."""
    annotations: Annotated[dict[str, Annotated[str, Field(max_length=1024)]], Field(max_length=32)] | None = None
    """Annotations of the Service, for a cloud's load balancer."""


class GatewayTls(ApiModel):
    """TLS towards clients."""

    secret_name: ObjectName
    """A Secret of type kubernetes.io/tls in the TenantPolicy's namespace. The gateway follows its renewal without a restart."""


class Gateway(ApiModel):
    """The salting gateways, the only way to the engines."""

    image: Image | None = None
    """The gateway image; the one that the operator was installed with when left out."""
    replicas: Annotated[int, Field(ge=0, le=64)] = 1
    """Gateway pods. Rate limits count in each of them."""
    resources: Resources | None = None
    """Compute resources of one gateway pod."""
    service: GatewayService = GatewayService()
    """The Service that clients use."""
    tls: GatewayTls | None = None
    """TLS towards clients, on port 8443; plain HTTP on port 8080 when left out."""
    allow_from: Peers = ()
    """Who may connect to the public port; everyone when empty. Clients still need an API key."""
    template: PodTemplate = PodTemplate()
    """Scheduling, labels and tighter security of the gateway pods."""
