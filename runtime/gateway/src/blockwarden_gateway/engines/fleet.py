"""The engines of this policy: found by name, attested one by one, and handed out to requests.

An engine is trusted as one process: its address, its pod's UID and the nonce that it drew at boot. Whatever suggests that
another process answers there ends the trust at once, and attestation starts again.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from blockwarden_core.policy import EngineAddress
from blockwarden_core.report import Attestation, EngineSeen
from blockwarden_gateway.errors import EngineUnavailable
from blockwarden_gateway.logs import Log
from blockwarden_gateway.material import Material
from blockwarden_gateway.metrics import Metrics

from .attestation import Problem, Refused
from .client import Target
from .routing import choose

ATTEMPTS: Final = 3
"""Inconclusive attestations in a row after which an engine that was attested before loses its traffic."""
MAX_BACKOFF: Final = 15.0
RESOLVE_SECONDS: Final = 5.0

Attest = Callable[[Target, Material], Awaitable[Attestation | Problem]]
Resolve = Callable[[EngineAddress], Awaitable[frozenset[str] | None]]


class Engine:
    """One endpoint. `nonce`, `pod_uid` and `versions` (plugin, vLLM) are those of the process that was attested last."""

    __slots__ = ("address", "attested", "due", "failures", "in_flight", "nonce", "pod_uid", "reason", "task", "versions")

    def __init__(self, address: str) -> None:
        self.address = address
        self.attested = False
        self.reason = "not attested yet"
        self.nonce: str | None = None
        self.pod_uid: str | None = None
        self.versions = ("", "")
        self.in_flight = 0
        self.failures = 0
        self.due = 0.0
        self.task: asyncio.Task[None] | None = None

    @property
    def seen(self) -> EngineSeen:
        return EngineSeen(
            address=self.address,
            pod_uid=self.pod_uid,
            boot_nonce=self.nonce,
            attested=self.attested,
            reason=self.reason,
        )

    def stop_asking(self) -> None:
        """Ends an attestation that is under way."""
        if self.task is not None:
            self.task.cancel()

    @contextmanager
    def carrying(self) -> Iterator[None]:
        """Counts one request towards this engine's load."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1


class Fleet:
    """Every engine that the headless Service names, and which of them may get traffic."""

    def __init__(self, *, material: Callable[[], Material], attest: Attest, resolve: Resolve, log: Log, metrics: Metrics) -> None:
        self._material, self._attest, self._resolve = material, attest, resolve
        self._log, self._metrics = log, metrics
        self._engines: dict[str, Engine] = {}
        self._woken = asyncio.Event()
        self.ever_attested = False

    @property
    def seen(self) -> tuple[EngineSeen, ...]:
        return tuple(engine.seen for _, engine in sorted(self._engines.items()))

    @property
    def versions(self) -> Counter[tuple[str, str]]:
        """How many attested engines run each pair of plugin and vLLM: a half-finished upgrade shows here."""
        return Counter(engine.versions for engine in self._engines.values() if engine.attested)

    def target(self, engine: Engine) -> Target:
        return Target(engine.address, self._material().policy.engine.server_name)

    def pick(self, key: bytes) -> Engine:
        """The attested engine for a request's routing key.

        Raises:
            EngineUnavailable: none is attested.
        """
        attested = {engine.pod_uid or address: engine for address, engine in self._engines.items() if engine.attested}
        chosen = choose({uid: engine.in_flight for uid, engine in attested.items()}, key)
        if chosen is None:
            raise EngineUnavailable("no engine is ready to serve in isolation: try again shortly", retry_after=2)
        return attested[chosen]

    def doubt(self, engine: Engine, reason: str) -> None:
        """Takes an engine out of traffic until it is attested again, which starts now."""
        self._drop(engine, reason)
        engine.due = 0.0
        self._woken.set()

    async def run(self, seconds: float) -> None:
        """Resolves and attests until cancelled, every `seconds` and whenever an engine is doubted."""
        try:
            while True:
                found = await self._resolve(self._material().policy.engine)
                if found is not None:
                    self._follow(found)
                self._start_due()
                self._woken.clear()
                try:
                    async with asyncio.timeout(seconds):
                        await self._woken.wait()
                except TimeoutError:
                    continue
        finally:
            for engine in self._engines.values():
                engine.stop_asking()

    def _follow(self, addresses: frozenset[str]) -> None:
        for address in self._engines.keys() - addresses:
            engine = self._engines.pop(address)
            self._drop(engine, "its address is gone")
            engine.stop_asking()
        for address in addresses - self._engines.keys():
            self._engines[address] = Engine(address)

    def _start_due(self) -> None:
        now = asyncio.get_running_loop().time()
        for engine in self._engines.values():
            if engine.task is None and now >= engine.due:
                engine.task = asyncio.create_task(self._attest_once(engine))
                engine.task.add_done_callback(partial(_forget, engine))

    async def _attest_once(self, engine: Engine) -> None:
        material = self._material()
        verdict = await self._attest(self.target(engine), material)
        now = asyncio.get_running_loop().time()
        if isinstance(verdict, Attestation):
            self._trust(engine, verdict)
            interval = material.policy.attestation_interval_seconds
            engine.due = now + interval * random.uniform(0.9, 1.0)  # noqa: S311  (spreads load, guards nothing)
            return
        engine.failures += 1
        engine.due = now + min(MAX_BACKOFF, 0.5 * 2**engine.failures)
        self._metrics.attestations.labels("refused" if isinstance(verdict, Refused) else "inconclusive").inc()
        if isinstance(verdict, Refused) or not engine.attested or engine.failures >= ATTEMPTS:
            self._drop(engine, verdict.reason)

    def _trust(self, engine: Engine, statement: Attestation) -> None:
        changed = not engine.attested or engine.nonce != statement.boot_nonce
        engine.attested, engine.reason, engine.failures = True, "attested", 0
        engine.nonce, engine.pod_uid = statement.boot_nonce, statement.pod_uid
        engine.versions = (statement.plugin_version, statement.engine_version)
        self.ever_attested = True
        self._metrics.attestations.labels("passed").inc()
        if changed:
            plugin, vllm = engine.versions
            self._log.write(
                "engine",
                address=engine.address,
                pod_uid=engine.pod_uid,
                attested=True,
                reason="attested",
                plugin=plugin,
                vllm=vllm,
            )

    def _drop(self, engine: Engine, reason: str) -> None:
        if engine.attested or engine.reason != reason:
            self._log.write("engine", address=engine.address, pod_uid=engine.pod_uid, attested=False, reason=reason)
        engine.attested, engine.reason = False, reason


def _forget(engine: Engine, task: asyncio.Task[None]) -> None:
    engine.task = None
    if not task.cancelled() and task.exception() is not None:
        # Attestation maps every failure that it knows to a verdict: this is a defect, and no reason to trust anybody.
        engine.attested, engine.reason, engine.due = False, f"attestation failed ({type(task.exception()).__name__})", 0.0


async def resolve(engine: EngineAddress) -> frozenset[str] | None:
    """The addresses behind a name, as `ip:port`; None where the resolver cannot say right now.

    A name that does not exist has no engines: a headless Service without ready pods looks like that.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await loop.getaddrinfo(engine.host, engine.port, type=socket.SOCK_STREAM)
    except TimeoutError:
        return None
    except socket.gaierror as error:
        return frozenset() if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA) else None
    return frozenset(_address(str(item[4][0]), engine.port) for item in found)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
