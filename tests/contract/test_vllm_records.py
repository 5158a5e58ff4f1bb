"""The recorded versions of vLLM and the plugin's own source agree: what the plugin overrides takes every call that vLLM makes.

`hooks/` in the plugin holds the accepted versions; `vllm/` beside this file holds the record of one that was examined and is not
accepted. For the accepted ones the checks find nothing, for the other exactly what docs/engine.md says about it.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from blockwarden_engine import compat

PLUGIN = Path(compat.__file__).parent
EXAMINED = Path(__file__).with_name("vllm")
OVERRIDES = [
    ("manager", "TenantKVCacheManager", "v1.core.kv_cache_manager", "KVCacheManager."),
    ("pool", "TenantBlockPool", "v1.core.block_pool", "BlockPool."),
    ("scheduler", "TenantScheduling", "v1.core.sched.scheduler:Scheduler", ""),
    ("shortage", "TenantShortage", "v1.core.sched.scheduler:Scheduler", ""),
    ("dispatch", "TenantDispatch", "v1.core.sched.scheduler:Scheduler", ""),
    ("waiting", "TenantQueue", "v1.core.sched.request_queue", "RequestQueue."),
    ("worker", "AckedOutput", "v1.outputs:AsyncModelRunnerOutput", ""),
    ("worker", "BlockwardenWorker", "v1.worker.gpu_worker:Worker.execute_model", ""),
    ("worker", "BlockwardenWorker", "v1.worker.gpu_worker:Worker.sample_tokens", ""),
    ("worker", "BlockwardenWorker", "v1.worker.gpu_worker:Worker.initialize_from_config", ""),
    ("worker", "BlockwardenWorker", "v1.worker.gpu_worker:Worker.sleep", ""),
    ("worker", "BlockwardenWorker", "v1.worker.gpu_worker:Worker.wake_up", ""),
    ("plugin", "_admitting_core", "v1.engine.core:EngineCore.preprocess_add_request", ""),
    ("plugin", "_admitting_input", "v1.engine.input_processor:InputProcessor.process_inputs", ""),
    ("plugin", "_checked_core", "v1.engine.core:EngineCoreProc._make_ready_response", ""),
    ("plugin", "_checked_config", "engine.arg_utils:EngineArgs.create_engine_config", ""),
    ("grammars", "ScopedGrammars", "v1.structured_output.__init__:StructuredOutputManager", ""),
    ("dump", "dump_engine_exception", "logging_utils.dump_input:dump_engine_exception", ""),
]
"""(module of the plugin, class, wrapper or function in it, recorded source, prefix of its members that the class overrides)."""


def load(directory: Path, version: str) -> dict[str, Any]:
    return dict(json.loads((directory / f"{version}.json").read_text())["hooks"])


def arguments(header: str) -> ast.arguments:
    function: Any = ast.parse(f"{header}: ...").body[0]
    parsed: ast.arguments = function.args
    return parsed


def own_functions(module: str, name: str) -> dict[str, ast.arguments]:
    tree = ast.parse((PLUGIN / f"{module}.py").read_text())
    node: Any = next(node for node in tree.body if getattr(node, "name", None) == name)
    return {child.name: child.args for child in (node, *node.body) if isinstance(child, ast.FunctionDef)}


def refused_calls(own: ast.arguments, theirs: ast.arguments) -> list[str]:
    """Parameters that vLLM's callers may give and this override does not take."""
    names = [argument.arg for argument in (*own.posonlyargs, *own.args)]
    given = [argument.arg for argument in (*theirs.posonlyargs, *theirs.args)]
    missing = [name for at, name in enumerate(given) if name != (names[at] if at < len(names) else None)]
    if own.vararg and own.kwarg and missing == given[len(names) :]:
        missing = []
    keywords = {argument.arg for argument in own.kwonlyargs} | set(names)
    missing += [argument.arg for argument in theirs.kwonlyargs if argument.arg not in keywords and not own.kwarg]
    if theirs.kwarg and not own.kwarg:
        missing.append(f"**{theirs.kwarg.arg}")
    required = names[len(given) : len(names) - len(own.defaults)]
    return missing + [f"{name}, which nobody gives" for name in required if not own.vararg]


def problems(hooks: dict[str, Any]) -> list[str]:
    """Where the plugin's overrides and a version's members do not fit together."""
    found = []
    for module, owner, target, prefix in OVERRIDES:
        own, members = own_functions(module, owner), hooks[target]["members"]
        for qualified, (header, _) in members.items():
            name = qualified.removeprefix(prefix)
            if not qualified.startswith(prefix) or "." in name:
                continue
            if name in own and "def " in header and name != "__init__":
                found += [f"{owner}.{name}: {parameter}" for parameter in refused_calls(own[name], arguments(header))]
            if "@abstractmethod" in header and name not in own:
                found.append(f"{owner}: no {name}")
    return found


@pytest.mark.parametrize("version", compat.accepted_versions())
def test_what_the_plugin_overrides_takes_every_call_of_an_accepted_version(version: str) -> None:
    assert problems(load(compat.RECORDS, version)) == []


def test_the_version_that_is_not_accepted_is_told_apart_by_what_changed() -> None:
    assert "0.33.0" not in compat.accepted_versions()
    assert problems(load(EXAMINED, "0.33.0")) == [
        "TenantKVCacheManager.get_computed_blocks: max_cache_hit_length",
        "TenantKVCacheManager.get_computed_blocks_for_connector: max_cache_hit_length",
        "AckedOutput: no get_kv_connector_output",
    ]


def test_every_listed_override_is_really_one() -> None:
    hooks = load(compat.RECORDS, "0.32.0")
    for module, owner, target, prefix in OVERRIDES:
        theirs = {name.removeprefix(prefix) for name in hooks[target]["members"] if name.startswith(prefix)}
        assert theirs & own_functions(module, owner).keys(), f"{owner} overrides nothing of {target}"


@pytest.mark.parametrize("version", compat.accepted_versions())
def test_an_accepted_record_is_whole(version: str) -> None:
    hooks = load(compat.RECORDS, version)
    assert sorted(hooks) == sorted(compat.all_targets())
    assert compat.check_version(version) == {target: hook["fingerprint"] for target, hook in hooks.items()}
    assert all(hook["fingerprint"] for hook in hooks.values())
