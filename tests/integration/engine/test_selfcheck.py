"""An engine that cannot keep tenants apart does not start, and says why in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blockwarden_core import layout
from blockwarden_core.hooks import REQUIRED_HOOKS
from blockwarden_core.kv_transfer import Connector, KvTransfer, render_kv_transfer
from blockwarden_engine.compat import (
    HOOKS,
    RECORDS,
    accepted_versions,
    all_targets,
    check_engine,
    check_fingerprints,
    installed_sources,
    observe_version,
)
from blockwarden_engine.errors import ChangedHook, UnsupportedEngine
from blockwarden_engine.plugin import check_core
from blockwarden_engine.sources import read_fingerprints

TAMPERED = "import blockwarden_engine.compat as c; from pathlib import Path; c.RECORDS = Path({records!r}); "
MAIN = "import sys; from blockwarden_engine.__main__ import main; main(['check', '--', *sys.argv[1:]])"
STOCK_SCHEDULER = """
from vllm.config.scheduler import SchedulerConfig
from vllm.v1.core.sched.scheduler import Scheduler
SchedulerConfig.get_scheduler_cls = lambda self: Scheduler
"""


@pytest.fixture
def check(engine_files: Any) -> Any:
    """Runs the check verb in a process of its own; returns its status and what it says."""

    def run(*args: str, code: str = MAIN, path: Path | None = None, **environ: str) -> tuple[int, str]:
        environment = os.environ | {
            layout.ROOT_ENV: str(engine_files.root), layout.POLICY_UID_ENV: engine_files.policy_uid, layout.POD_UID_ENV: "pod",
        } | environ  # fmt: skip
        if path is not None:
            environment["PYTHONPATH"] = str(path)
        done = subprocess.run(
            [sys.executable, "-c", code, "--model=/models/x", *args], env=environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr

    return run


def refused(outcome: tuple[int, str], *words: str) -> None:
    status, said = outcome
    assert status == 78, said
    assert len(said.strip().splitlines()) == 1
    assert said.startswith("blockwarden-engine: ")
    for word in words:
        assert word in said


def test_a_good_deployment_passes_the_check(check: Any) -> None:
    assert check() == (0, "")


def test_arguments_and_variables_are_refused(check: Any) -> None:
    refused(check("--enable-log-requests"), "--enable-log-requests", "remove it")
    refused(check(VLLM_SERVER_DEV_MODE="1"), "VLLM_SERVER_DEV_MODE")


def test_an_external_cache_is_refused(check: Any) -> None:
    rendered = render_kv_transfer(KvTransfer(connector=Connector.SIMPLE_CPU_OFFLOAD))
    refused(check(f"--kv-transfer-config={rendered}"), "--kv-transfer-config", "remove spec.engine.kvTransfer")


def test_without_a_valid_policy_nothing_starts(check: Any, engine_files: Any) -> None:
    engine_files.mount(layout.ENGINE_POLICY, "{}")
    refused(check(), "Sealed")
    (engine_files.root / layout.ENGINE_POLICY).unlink()
    refused(check(), layout.ENGINE_POLICY)


def test_another_version_of_vllm_is_refused(check: Any, tmp_path: Path) -> None:
    metadata = tmp_path / "site" / "vllm-9.9.9.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.9.9\n")
    refused(check(path=tmp_path / "site"), "vLLM 9.9.9", *accepted_versions(), "docs/engine.md", "recorded")


@pytest.mark.parametrize("change", ["differs", "has no recorded fingerprint"])
def test_a_changed_or_unknown_hook_is_refused(check: Any, tmp_path: Path, change: str) -> None:
    name, target = f"{observe_version()}.json", "v1.core.block_pool"
    record = json.loads((RECORDS / name).read_text())
    if change == "differs":
        record["hooks"][target]["fingerprint"] = "0" * 16
    else:
        del record["hooks"][target]
    (tmp_path / name).write_text(json.dumps(record))
    refused(check(code=TAMPERED.format(records=str(tmp_path)) + MAIN), target, change)


def test_without_its_record_the_installed_version_is_refused(check: Any, tmp_path: Path) -> None:
    (tmp_path / "0.1.0.json").write_text("{}")
    refused(check(code=TAMPERED.format(records=str(tmp_path)) + MAIN), f"vLLM {observe_version()}", "only 0.1.0 is known")


def test_the_installed_vllm_is_the_recorded_one_and_every_required_hook_is_covered() -> None:
    assert check_engine().keys() == REQUIRED_HOOKS == HOOKS.keys()


def test_a_hook_that_is_gone_is_refused() -> None:
    observed = read_fingerprints(all_targets(), installed_sources())
    with pytest.raises(ChangedHook, match="is gone"):
        check_fingerprints(observed | {"v1.engine.core:EngineCore.__init__": ""}, observed)


@pytest.mark.parametrize(
    "code",
    [
        "from blockwarden_engine.worker import BlockwardenWorker as make; make(None)",
        "from blockwarden_engine.frontend import IsolationMiddleware as make; make(None)",
        "from blockwarden_engine.scheduler import TenantScheduler as make; make(None)",
    ],
    ids=["worker", "API server", "scheduler"],
)
def test_no_process_goes_on_without_the_plugin(check: Any, code: str) -> None:
    status, said = check(code=code)
    assert status != 0
    assert "PluginMissing" in said.strip().splitlines()[-1]


def test_vllm_loads_the_plugin_from_its_entry_point_alone(check: Any) -> None:
    code = (
        "from vllm.plugins import load_general_plugins; from blockwarden_engine.installed import require_plugin; "
        "load_general_plugins(); require_plugin('test')"
    )
    assert check(code=code, VLLM_PLUGINS="blockwarden")[0] == 0
    status, said = check(code=code, VLLM_PLUGINS="another")
    assert status != 0
    assert "PluginMissing" in said


def test_a_core_with_another_worker_is_refused(vllm_imported: None) -> None:
    from blockwarden_engine.scheduler import TenantScheduler

    core: Any = type("Core", (), {})()
    core.scheduler = object.__new__(TenantScheduler)
    core.vllm_config = type("Config", (), {"parallel_config": type("Parallel", (), {"worker_cls": "vllm.v1.worker.cpu_worker"})})
    with pytest.raises(UnsupportedEngine, match="another worker"):
        check_core(core)


def test_a_real_engine_with_vllms_own_scheduler_does_not_start(engines: Any) -> None:
    engine = engines.make(twin=STOCK_SCHEDULER)
    with pytest.raises(AssertionError, match="the engine ended"):
        engine.start()
    assert engine.process.returncode not in (0, None)
    assert "the engine has another scheduler than blockwarden_engine.scheduler.make_scheduler" in engine.log.read_text()
    engines.stop()
