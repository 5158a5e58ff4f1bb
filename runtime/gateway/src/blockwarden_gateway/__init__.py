"""The salting gateway: the one way from a tenant's client to the engines of its TenantPolicy."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
