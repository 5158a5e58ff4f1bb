"""Where an engine's processes find what they share: environment variables, and the classes that vLLM is told to load.

The launcher sets these variables; vLLM's child processes inherit them. Standard library and core only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blockwarden_core import layout

from .errors import LaunchRefused

BOOT_NONCE_ENV: Final = "BLOCKWARDEN_BOOT_NONCE"
SCRUB_VERIFY_ENV: Final = "BLOCKWARDEN_SCRUB_VERIFY"
SCRUB_VERIFY_MODES: Final = ("Off", "Sampled", "Always")
SCRUB_STREAM_ENV: Final = "BLOCKWARDEN_SCRUB_STREAM"
SCRUB_STREAMS: Final = ("Main", "Side")

PLUGIN_NAME: Final = "blockwarden"
SCHEDULER: Final = "blockwarden_engine.scheduler.make_scheduler"
WORKER: Final = "blockwarden_engine.worker.BlockwardenWorker"
MIDDLEWARE: Final = "blockwarden_engine.frontend.IsolationMiddleware"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this engine is.

    Attributes:
        root: the directory of the mounted files.
        policy_uid: the TenantPolicy's UID.
        pod_uid: this pod's UID.
        boot_nonce: drawn by the launcher; every process of one engine has the same.
    """

    root: Path
    policy_uid: str
    pod_uid: str
    boot_nonce: str


def observe_identity(environ: Mapping[str, str] = os.environ) -> Identity:
    """Raises:
    LaunchRefused: a variable that the operator or the launcher sets is missing.
    """
    for name in (layout.POLICY_UID_ENV, layout.POD_UID_ENV, BOOT_NONCE_ENV):
        if not environ.get(name):
            raise LaunchRefused(f"{name} is not set: start the engine with python -m blockwarden_engine in a rendered pod")
    return Identity(
        root=Path(environ.get(layout.ROOT_ENV) or layout.ROOT),
        policy_uid=environ[layout.POLICY_UID_ENV],
        pod_uid=environ[layout.POD_UID_ENV],
        boot_nonce=environ[BOOT_NONCE_ENV],
    )
