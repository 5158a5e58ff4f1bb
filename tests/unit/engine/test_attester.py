"""What the API process says for an engine core that answers, is busy, or is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blockwarden_core.report import EngineReport, PoolBlocks
from blockwarden_engine import attest
from blockwarden_engine.attest import ALIVE_SECONDS, ANSWER_SECONDS, HEARTBEAT_SECONDS, Attester
from blockwarden_engine.errors import PluginMissing
from blockwarden_engine.refusals import Refusals
from blockwarden_engine.settings import Identity

POOL = PoolBlocks(total=4, clean=4, owned=0, dirty=0, scrubbing=0)


class Core:
    """Stands for vLLM's engine client; answers the utility call, or not."""

    def __init__(self) -> None:
        self.version, self.calls, self.busy, self.broken = 5, 0, False, False
        self.engine_core = self

    async def call_utility_async(self, name: str) -> str:
        assert name == "blockwarden_report"
        self.calls += 1
        if self.broken:
            raise RuntimeError("engine dead")
        while self.busy:
            await asyncio.sleep(0.01)
        return EngineReport(
            pod_uid="?", boot_nonce="?", policy_version=self.version, pool=POOL, tenants=(), counters={"blocks_scrubbed": 9}
        ).text()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> tuple[Attester, Core, Clock, Any]:
    monkeypatch.setattr(attest, "ANSWER_SECONDS", 0.05)
    core, clock = Core(), Clock()
    admission: Any = SimpleNamespace(policy=SimpleNamespace(version=7), reload_error=None, refusals=Refusals())
    made = Attester(Identity(Path("/"), "uid", "pod", "nonce"), admission, clock=clock)
    made.bind(core)
    return made, core, clock, admission


async def test_a_report_carries_this_pods_identity(parts: Any) -> None:
    made, *_ = parts
    report = await made.report()
    assert (report.pod_uid, report.boot_nonce, report.policy_version) == ("pod", "nonce", 5)
    assert made.alive()


async def test_a_version_is_in_force_only_when_both_processes_enforce_it(parts: Any) -> None:
    made, core, _, admission = parts
    core.version, admission.policy.version = 8, 6
    assert (await made.report()).policy_version == 6
    admission.reload_error = "broken"
    assert (await made.report()).reload_error == "broken"


async def test_certificates_that_cannot_be_used_show_in_the_report(parts: Any) -> None:
    made, *_ = parts
    said: list[str | None] = [None, None]
    for at in range(2):
        made.watch_also(lambda at=at: said[at])
    assert (await made.report()).reload_error is None
    said[1] = "the renewed certificate cannot be used"
    assert (await made.report()).reload_error == said[1]
    said[1] = None
    assert (await made.report()).reload_error is None


async def test_a_busy_core_is_asked_once_and_the_last_report_stands_in(parts: Any) -> None:
    made, core, clock, _ = parts
    first = await made.report()
    core.busy = True
    assert await made.report() == first == await made.report()
    assert core.calls == 2
    clock.now = ALIVE_SECONDS + 1
    assert not made.alive()
    core.busy = False
    await asyncio.sleep(0.05)
    assert made.alive()


async def test_a_dead_core_shows_in_livez(parts: Any) -> None:
    made, core, clock, _ = parts
    await made.report()
    core.broken = True
    clock.now = ALIVE_SECONDS + 1
    await made.report()
    assert not made.alive()


async def test_the_heartbeat_goes_on_over_a_core_that_fails_for_a_while(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, core, clock, _ = parts
    assert 3 * (HEARTBEAT_SECONDS + ANSWER_SECONDS) < ALIVE_SECONDS, "a few lost questions are no death"
    monkeypatch.setattr(attest, "HEARTBEAT_SECONDS", 0.001)
    core.broken = True
    beating = asyncio.create_task(made.heartbeat())
    async with asyncio.timeout(10):
        while core.calls < 3:
            await asyncio.sleep(0.001)
        assert not made.alive()
        core.broken, clock.now = False, 5.0
        while not made.alive():
            await asyncio.sleep(0.001)
    beating.cancel()


async def test_before_the_first_answer_there_is_no_report(parts: Any) -> None:
    made, core, *_ = parts
    core.broken = True
    with pytest.raises(PluginMissing):
        await made.report()
    assert not made.alive()
