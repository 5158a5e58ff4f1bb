"""The external KV caches that a deployment may use, and the one line of vLLM configuration that each of them gets.

The list is closed: a connector may only be here if its storage keys come from the salted block hashes in every cache group.
Those that key by bare token ids (LMCacheConnectorV1, HF3FS, Example), that trust transfer parameters of a request (NIXL,
Mooncake P2P, MoRIIO) or that nobody has reviewed are refused by not being here.
"""

from __future__ import annotations

import enum
import json
from typing import Annotated, Any, Final

from pydantic import Field

from . import unsafe
from .document import Document

NAMESPACE_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
DEFAULT_CPU_BYTES: Final = 8 * 1024**3


class Connector(enum.StrEnum):
    """A connector by the name that vLLM knows it under, without the suffix `Connector`."""

    OFFLOADING = "Offloading"
    SIMPLE_CPU_OFFLOAD = "SimpleCPUOffload"
    MOONCAKE_STORE = "MooncakeStore"
    LMCACHE_MP = "LMCacheMP"
    FUSIONX = "FusIOnX"


IN_POD: Final = frozenset({Connector.OFFLOADING, Connector.SIMPLE_CPU_OFFLOAD})
"""Connectors that keep blocks in the memory of the engine's own pod."""


PROVEN: Final[frozenset[Connector]] = frozenset()
"""Connectors under which isolation was shown on a real engine, the blocks of the tenants' pool included. The operator refuses
a policy with any other, and the engine does not start with one: salted keys do not say what a connector does to freed blocks."""
UNPROVEN: Final = "no external KV cache has been shown to keep tenants apart together with the tenants' block pool"


class KvTransfer(Document):
    """One external KV cache.

    `cpu_bytes` is the size of the store of the connectors IN_POD, in bytes for all ranks together. `require_cache_salt` and
    `key_namespace` are FusIOnX's switches; the others have none, and off they are left out, which keeps that cache's storage
    keys byte for byte what they were.
    """

    connector: Connector
    cpu_bytes: Annotated[int, Field(ge=1)] = DEFAULT_CPU_BYTES
    require_cache_salt: bool = False
    key_namespace: Annotated[str, Field(pattern=NAMESPACE_PATTERN)] | None = None


def render_kv_transfer(transfer: KvTransfer) -> str:
    """The value of vLLM's `--kv-transfer-config`: JSON without spaces, the same for the same value."""
    config: dict[str, Any] = {"kv_connector": f"{transfer.connector}Connector"}
    if transfer.connector is Connector.FUSIONX:
        config["kv_connector_module_path"] = "xkv_vllm_connector.fusionx_connector"
    config["kv_role"] = "kv_both"
    if extra := _extra_config(transfer):
        config["kv_connector_extra_config"] = extra
    return json.dumps(config, separators=(",", ":"))


def kv_transfer_refusal(text: str) -> str | None:
    """Why an engine must not start with this `--kv-transfer-config`, in one sentence; None if `render_kv_transfer` wrote it."""
    try:
        config = json.loads(text)
        extra = config.get("kv_connector_extra_config", {})
        transfer = KvTransfer(
            connector=Connector(str(config["kv_connector"]).removesuffix("Connector")),
            cpu_bytes=extra.get("cpu_bytes_to_use", DEFAULT_CPU_BYTES),
            require_cache_salt=extra.get("require_cache_salt", False),
            key_namespace=extra.get("key_namespace"),
        )
    except (ValueError, KeyError, AttributeError):
        transfer = None
    if transfer is not None and render_kv_transfer(transfer) == text:
        return None
    if (name := connector_named(text)) is not None and (why := unsafe.CONNECTORS.get(name)) is not None:
        return f"--kv-transfer-config names {name}, which is refused ({why}): remove it"
    return "--kv-transfer-config is not one that blockwarden renders: set spec.engine.kvTransfer"


def connector_named(text: str) -> str | None:
    """The class that a `--kv-transfer-config` names; None where it names none."""
    try:
        name = json.loads(text)["kv_connector"]
    except (ValueError, KeyError, TypeError):
        return None
    return name if isinstance(name, str) else None


def _extra_config(transfer: KvTransfer) -> dict[str, Any]:
    if transfer.connector in IN_POD:
        return {"cpu_bytes_to_use": transfer.cpu_bytes}
    if transfer.connector is not Connector.FUSIONX:
        return {}
    extra: dict[str, Any] = {"xkv_gateway_port": 5557, "chunk_size": 128}
    if transfer.require_cache_salt:
        extra["require_cache_salt"] = True
    if transfer.key_namespace is not None:
        extra["key_namespace"] = transfer.key_namespace
    return extra
