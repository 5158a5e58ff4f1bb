"""Starts an engine, or refuses to with one sentence.

Everything that isolation needs from vLLM's command line and environment is set here, and everything that could undo it is
refused here, from allow-lists (`blockwarden_core.engine_args`). There is no switch to run without isolation. Pure; `server`
holds the event loop.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from blockwarden_core import layout
from blockwarden_core.engine_args import inherited_env_refusal, launch_refusal
from blockwarden_core.kv_transfer import UNPROVEN, connector_named

from .errors import LaunchRefused
from .settings import BOOT_NONCE_ENV, MIDDLEWARE, PLUGIN_NAME, SCHEDULER, SCRUB_VERIFY_ENV, SCRUB_VERIFY_MODES, WORKER

OWN_ARGS: Final[Mapping[str, str]] = MappingProxyType({
    "api-port": "[0-9]{1,5}",
    "bind-host": "[0-9A-Fa-f.:]{1,45}",
    "internal-port": "[0-9]{1,5}",
    "kv-scrub-verify": "|".join(SCRUB_VERIFY_MODES),
})  # fmt: skip
"""The launcher's own arguments, `--name=value`, and the pattern of each value."""

MANDATORY_ARGS: Final = (
    f"--scheduler-cls={SCHEDULER}",
    f"--worker-cls={WORKER}",
    f"--middleware={MIDDLEWARE}",
    "--enable-prefix-caching",
    "--prefix-caching-hash-algo=sha256",
    "--language-model-only",
    "--mm-processor-cache-gb=0",
    '--structured-outputs-config={"backend":"xgrammar"}',
    "--enable-prompt-tokens-details",
    "--disable-fastapi-docs",
    "--fingerprint-mode=none",
    "--disable-uvicorn-access-log",
    "--no-enable-log-requests",
    "--ssl-cert-reqs=2",
)
MANDATORY_ENV: Final[Mapping[str, str]] = MappingProxyType({
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": PLUGIN_NAME,
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start.

    Attributes:
        host: the address that both ports bind.
        api_port, internal_port: the two ports.
        tls_directory: where the server's certificates are mounted.
        vllm_args: the whole command line of vLLM's API server.
        environment: what to set before vLLM is imported.
    """

    host: str
    api_port: int
    internal_port: int
    tls_directory: Path
    vllm_args: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)


def plan_launch(args: Sequence[str], environ: Mapping[str, str], *, boot_nonce: str) -> Launch:
    """What to start for these arguments.

    Args:
        args: the launcher's own arguments and allowed vLLM arguments, each `--flag=value` or `--flag`.
        environ: the environment that the engine would inherit.
        boot_nonce: 128 fresh random bits, hexadecimal.

    Raises:
        LaunchRefused: an argument or variable that would undo isolation, or a mandatory one that is missing.
    """
    own, vllm = _split(args)
    if problem := launch_refusal(vllm) or inherited_env_refusal(environ):
        raise LaunchRefused(problem)
    if not any(arg.startswith("--model=") for arg in vllm):
        raise LaunchRefused("--model is missing: name the directory of the weights")
    if environ.get("VLLM_PLUGINS", PLUGIN_NAME) != PLUGIN_NAME:
        raise LaunchRefused(f"VLLM_PLUGINS names other plugins than {PLUGIN_NAME}: build the image without it")
    for name in (layout.POLICY_UID_ENV, layout.POD_UID_ENV):
        if not environ.get(name):
            raise LaunchRefused(f"{name} is not set: the operator's pod template sets it")
    directory = Path(environ.get(layout.ROOT_ENV) or layout.ROOT) / layout.SERVER_TLS
    host, port = own.get("bind-host", "0.0.0.0"), int(own.get("api-port", layout.ENGINE_API_PORT))  # noqa: S104 - a pod's port
    tls = (
        f"--ssl-certfile={directory / layout.TLS_CERT}",
        f"--ssl-keyfile={directory / layout.TLS_KEY}",
        f"--ssl-ca-certs={directory / layout.TLS_CA}",
    )
    return Launch(
        host=host,
        api_port=port,
        internal_port=int(own.get("internal-port", layout.ENGINE_INTERNAL_PORT)),
        tls_directory=directory,
        vllm_args=(*vllm, *MANDATORY_ARGS, *tls, f"--host={host}", f"--port={port}"),
        environment={
            **MANDATORY_ENV,
            BOOT_NONCE_ENV: boot_nonce,
            SCRUB_VERIFY_ENV: own.get("kv-scrub-verify", SCRUB_VERIFY_MODES[0]),
        },
    )


def run_eagerly(launch: Launch) -> Launch:
    """The same launch where there is no C++ compiler.

    PyTorch compiles some functions when they are first called, logprobs' among them, and vLLM's `--enforce-eager` does not reach
    those. Without a compiler that call fails inside a step and takes the engine down: any tenant could do that with one request.
    """
    eager = () if "--enforce-eager" in launch.vllm_args else ("--enforce-eager",)
    return replace(launch, vllm_args=(*launch.vllm_args, *eager), environment={**launch.environment, "TORCHDYNAMO_DISABLE": "1"})


def check_external_cache(launch: Launch) -> None:
    """Raises:
    LaunchRefused: the engine would copy KV blocks into an external cache. The argument is one that the operator renders, so
        `plan_launch` reads it; but no connector has been shown to keep tenants apart together with the tenants' block pool.
    """
    for name, _, value in (arg.partition("=") for arg in launch.vllm_args):
        if name == "--kv-transfer-config":
            raise LaunchRefused(f"{name} names {connector_named(value)}, and {UNPROVEN}: remove spec.engine.kvTransfer")


def _split(args: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    own: dict[str, str] = {}
    vllm = []
    for arg in args:
        name, _, value = arg.removeprefix("--").partition("=")
        if not arg.startswith("--") or name not in OWN_ARGS:
            vllm.append(arg)
        elif name in own:
            raise LaunchRefused(f"--{name} is given twice: keep one")
        elif not re.fullmatch(OWN_ARGS[name], value):
            raise LaunchRefused(f"--{name} has a value that does not match {OWN_ARGS[name]}: change it")
        else:
            own[name] = value
    return own, vllm
