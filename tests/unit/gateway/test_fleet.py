"""Which engines get traffic while attestations come and go."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator

import pytest

from blockwarden_core.report import Attestation
from blockwarden_gateway.engines.attestation import Inconclusive, Problem, Refused
from blockwarden_gateway.engines.fleet import ATTEMPTS, Fleet
from blockwarden_gateway.errors import EngineUnavailable
from blockwarden_gateway.logs import Log
from blockwarden_gateway.metrics import Metrics


def statement(nonce: str) -> Attestation:
    return Attestation(
        pod_uid=f"pod-{nonce}", boot_nonce=nonce, policy_uid="uid-1", policy_version=1, plugin_version="1",
        engine_version="2", hooks={},
    )  # fmt: skip


class World:
    """What the resolver finds and what each attestation says."""

    def __init__(self, material) -> None:
        self.addresses: frozenset[str] | None = frozenset({"10.0.0.1:8000"})
        self.verdict: Attestation | Problem | Exception = statement("one")
        self.asked = 0
        self.fleet = Fleet(
            material=lambda: material, attest=self._attest, resolve=self._resolve, log=Log(io.StringIO()), metrics=Metrics()
        )

    async def _attest(self, target, material) -> Attestation | Problem:
        self.asked += 1
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict

    async def _resolve(self, engine) -> frozenset[str] | None:
        return self.addresses

    @property
    def seen(self) -> dict[str, tuple[bool, str]]:
        return {engine.address: (engine.attested, engine.reason) for engine in self.fleet.seen}

    async def ask_again(self) -> None:
        """Has the engine's next attestation done now."""
        asked, engine = self.asked, next(iter(self.fleet._engines.values()))
        engine.due = 0.0
        self.fleet._woken.set()
        await until(lambda: self.asked > asked and engine.task is None)


async def until(true) -> None:
    async with asyncio.timeout(3):
        while not true():
            await asyncio.sleep(0.005)


@pytest.fixture
async def world(material) -> AsyncIterator[World]:
    world = World(material)
    task = asyncio.create_task(world.fleet.run(0.01))
    await until(lambda: world.asked)
    yield world
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_an_attested_engine_is_picked(world):
    assert world.fleet.pick(b"key").nonce == "one"
    assert world.fleet.ever_attested


@pytest.mark.parametrize(
    "verdict", [Refused("shares"), Inconclusive("busy"), RuntimeError("defect")], ids=["no", "maybe", "defect"]
)
async def test_a_new_engine_without_proof_gets_nothing(world, verdict):
    world.verdict = verdict
    world.addresses = frozenset({"10.0.0.2:8000"})
    await until(lambda: world.asked > 1)
    with pytest.raises(EngineUnavailable) as refused:
        world.fleet.pick(b"key")
    assert refused.value.retry_after


async def test_an_engine_that_fails_to_isolate_loses_its_traffic_at_once(world):
    world.verdict = Refused("the engine shares cache across scopes")
    await world.ask_again()
    assert world.seen == {"10.0.0.1:8000": (False, "the engine shares cache across scopes")}


async def test_versions_are_counted_for_attested_engines_alone(world):
    assert world.fleet.versions == {("1", "2"): 1}
    world.verdict = Refused("the engine shares cache across scopes")
    await world.ask_again()
    assert not world.fleet.versions


async def test_an_engine_that_cannot_be_asked_loses_its_traffic_after_some_attempts(world):
    world.verdict = Inconclusive("busy")
    for _ in range(ATTEMPTS - 1):
        await world.ask_again()
        assert world.seen["10.0.0.1:8000"] == (True, "attested")
    await world.ask_again()
    assert world.seen["10.0.0.1:8000"] == (False, "busy")


async def test_a_doubted_engine_is_asked_again_at_once(world):
    engine = world.fleet.pick(b"key")
    world.verdict = statement("two")
    world.fleet.doubt(engine, "another process answers")
    with pytest.raises(EngineUnavailable):
        world.fleet.pick(b"key")
    await until(lambda: world.seen["10.0.0.1:8000"][0])
    assert world.fleet.pick(b"key").nonce == "two"


async def test_an_address_that_goes_takes_its_trust_along(world):
    world.addresses = frozenset()
    await until(lambda: not world.seen)
    world.verdict, world.addresses = Inconclusive("busy"), frozenset({"10.0.0.1:8000"})
    await until(lambda: world.seen)
    assert not world.seen["10.0.0.1:8000"][0]


async def test_a_resolver_that_cannot_say_changes_nothing(world):
    world.addresses = None
    await asyncio.sleep(0.05)
    assert world.seen["10.0.0.1:8000"][0]


async def test_an_attestation_that_ends_in_a_defect_ends_the_trust(world):
    world.verdict = RuntimeError("defect")
    await world.ask_again()
    assert not world.seen["10.0.0.1:8000"][0]
