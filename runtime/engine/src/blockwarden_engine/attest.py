"""What this engine says about itself: reports for the operator, attestations for the gateway, a heartbeat for the kubelet.

The truth about blocks is in the engine core, another process whose loop answers between two steps. So one call is under way
at a time, whoever asks waits a bounded time for it, and the last answer stands in for one that is late: reports only ever lag,
and each carries the policy version it speaks of.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from typing import Any, Final

from blockwarden_core.report import Attestation, EngineReport

from .admission import Admission, process_admission
from .compat import observe_version
from .errors import PluginMissing
from .installed import HOOKS
from .refusals import add_refusals
from .settings import Identity, observe_identity

HEARTBEAT_SECONDS: Final = 10.0
"""Every question takes time from the engine core's steps, and ALIVE_SECONDS bears a dozen of these."""
ANSWER_SECONDS: Final = 2.0
"""How long one question waits for an answer before the last one stands in."""
ALIVE_SECONDS: Final = 120.0
"""How long an engine core may take over one step (a long prompt on a slow machine) before it counts as hung."""


class Attester:
    """Asks the engine core, and adds what only the API process knows.

    Attributes:
        last: the last report, None before the first.
    """

    def __init__(self, identity: Identity, admission: Admission, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._identity, self._admission, self._clock = identity, admission, clock
        self._ask: Callable[[], Any] | None = None
        self._call: asyncio.Task[EngineReport] | None = None
        self._answered: float | None = None
        self._troubles: list[Callable[[], str | None]] = [lambda: admission.reload_error]
        self.last: EngineReport | None = None

    def bind(self, engine_client: Any) -> None:
        """Names the vLLM engine client to ask through."""
        self._ask = lambda: engine_client.engine_core.call_utility_async("blockwarden_report")

    def watch_also(self, trouble: Callable[[], str | None]) -> None:
        """Adds to what the report's `reload_error` may say: why some mounted file cannot be used, None while all can."""
        self._troubles.append(trouble)

    def alive(self) -> bool:
        """Whether the engine core has answered lately."""
        return self._answered is not None and self._clock() - self._answered < ALIVE_SECONDS

    async def heartbeat(self) -> None:
        """Asks for ever."""
        while True:
            with contextlib.suppress(PluginMissing):
                await self.report()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def report(self) -> EngineReport:
        """The engine's report, or the last one if the core is busy.

        Raises:
            PluginMissing: the core has never answered.
        """
        if self._call is None or self._call.done():
            self._call = asyncio.create_task(self._fetch())
        with contextlib.suppress(Exception):  # a core that cannot answer shows in `alive`; the last report stands in
            await asyncio.wait_for(asyncio.shield(self._call), ANSWER_SECONDS)
        if self.last is None:
            raise PluginMissing("the engine core has not reported yet: wait until it has started")
        return self.last

    async def attestation(self) -> Attestation:
        """What is enforced here, and by which code."""
        report = await self.report()
        return Attestation(
            pod_uid=self._identity.pod_uid,
            boot_nonce=self._identity.boot_nonce,
            policy_uid=self._identity.policy_uid,
            policy_version=report.policy_version,
            plugin_version=metadata.version("blockwarden-engine"),
            engine_version=observe_version(),
            hooks=dict(HOOKS),
            scrub=report.scrub,
        )

    def _reload_errors(self) -> Iterator[str]:
        return (said for trouble in self._troubles if (said := trouble()) is not None)

    async def _fetch(self) -> EngineReport:
        if self._ask is None:
            raise PluginMissing("the engine core has not started yet: wait until it has")
        report = EngineReport.read(await self._ask())
        self._answered = self._clock()
        # A version counts as in force only when both processes enforce it: tokens are refused here, blocks are freed there.
        self.last = report.model_copy(
            update={
                "pod_uid": self._identity.pod_uid,
                "boot_nonce": self._identity.boot_nonce,
                "policy_version": min(report.policy_version, self._admission.policy.version),
                "reload_error": report.reload_error or next(self._reload_errors(), None),
                "refusals": add_refusals(report.refusals, self._admission.refusals.since_start(t.name for t in report.tenants)),
            }
        )
        return self.last


@cache
def process_attester() -> Attester:
    """This process's attester."""
    return Attester(observe_identity(), process_admission())
