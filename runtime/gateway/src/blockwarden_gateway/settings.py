"""What one gateway process is told by its environment. Pure: the environment is an argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from blockwarden_core import layout

from .errors import StartError


@dataclass(frozen=True, slots=True)
class Settings:
    """Times are in seconds, sizes in bytes."""

    root: Path
    pod_uid: str
    policy_uid: str
    host: str = "0.0.0.0"  # noqa: S104  (in a pod; NetworkPolicy says who may connect)
    public_tls: bool = False
    """Whether the public port serves the certificate beneath PUBLIC_TLS; decided once, when the process starts."""
    public_port: int = layout.GATEWAY_PUBLIC_PORT
    internal_port: int = layout.GATEWAY_INTERNAL_PORT
    reload_seconds: float = 0.5
    resolve_seconds: float = 1.0
    linger_seconds: float = 3.0
    """How long a terminating pod still accepts connections: Services take it out of rotation with a delay."""
    drain_seconds: float = 30.0
    max_body: int = 4 << 20
    body_seconds: float = 30.0
    """How long a client may take to send its body."""


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The settings in the environment of a pod.

    Raises:
        StartError: the pod's or the policy's UID is missing.
    """
    root = Path(environment.get(layout.ROOT_ENV, layout.ROOT))
    for name in (layout.POD_UID_ENV, layout.POLICY_UID_ENV):
        if not environment.get(name):
            raise StartError(f"{name} is not set: the operator sets it in the gateway's pod template")
    public_tls = (root / layout.PUBLIC_TLS / layout.TLS_CERT).exists()
    return Settings(
        root=root,
        pod_uid=environment[layout.POD_UID_ENV],
        policy_uid=environment[layout.POLICY_UID_ENV],
        public_tls=public_tls,
        public_port=layout.GATEWAY_PUBLIC_TLS_PORT if public_tls else layout.GATEWAY_PUBLIC_PORT,
    )
