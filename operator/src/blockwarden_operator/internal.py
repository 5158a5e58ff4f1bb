"""The operator's view of running pods over the network: reports from internal ports, and probes of ports that must be closed.

A report counts only if the pod proved with its certificate, against the policy's CA and under its component's stable name,
that it is what its address claims, and if it names the UID of the pod that was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import aiohttp

from blockwarden_core.errors import DocumentError
from blockwarden_core.layout import (
    ENGINE_API_PORT,
    ENGINE_INTERNAL_PORT,
    ENGINE_KV_EVENTS_PORT,
    GATEWAY_INTERNAL_PORT,
    STATUS_PATH,
)
from blockwarden_core.report import EngineReport, GatewayReport

from .errors import ReportError
from .observed import Pod, PortProbe

REPORT_SECONDS: Final = 5.0
REPORT_LIMIT: Final = 1 << 20
PROBE_SECONDS: Final = 2.0
PROBE_PERIOD: Final = 60.0
"""Probing costs a pod a few connections; how often it is done per policy."""
SETTLE_SECONDS: Final = 10.0
"""A network plug-in lets a new pod through some moments after its start. So long as the operator itself is new, a ready pod that
it cannot reach is asked again before anything is said about it: a restart of the operator is no news about the pods."""

Report = TypeVar("Report", GatewayReport, EngineReport)
Locate = Callable[[Pod, int], tuple[str, int]]
"""Where a pod's port is reached: its own address in a cluster, a loopback port in a test."""


def pod_address(pod: Pod, port: int) -> tuple[str, int]:
    """A pod's own address."""
    return pod.ip, port


@dataclass(slots=True)
class Inspector:
    """Asks pods. `probe` is False where the operator is outside the pod network: then nothing can be said about closed ports."""

    probe: bool
    clock: Callable[[], float]
    locate: Locate = pod_address
    settle_seconds: float = 0.0
    _born: float = field(init=False)
    _probed: dict[str, tuple[float, PortProbe]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._born = self.clock()

    async def observe_gateways(
        self, pods: tuple[Pod, ...], *, ca: bytes | None, server_name: str
    ) -> dict[str, GatewayReport | None]:
        """The report of each gateway pod by UID, None where it gave none."""
        reports = await asyncio.gather(
            *(self._report(GatewayReport, pod, GATEWAY_INTERNAL_PORT, ca, server_name) for pod in pods)
        )
        return {pod.uid: report for pod, report in zip(pods, reports, strict=True)}

    async def observe_engines(
        self, pods: tuple[Pod, ...], *, ca: bytes | None, server_name: str
    ) -> dict[str, EngineReport | None]:
        """The report of each engine pod by UID, None where it gave none."""
        reports = await asyncio.gather(*(self._report(EngineReport, pod, ENGINE_INTERNAL_PORT, ca, server_name) for pod in pods))
        return {pod.uid: report for pod, report in zip(pods, reports, strict=True)}

    async def observe_ports(self, engines: tuple[Pod, ...]) -> Mapping[str, PortProbe] | None:
        """For each engine pod which ports opened to the operator; answers are reused for PROBE_PERIOD. None: cannot be told."""
        if not self.probe:
            return None
        now = self.clock()
        self._probed = {uid: entry for uid, entry in self._probed.items() if now - entry[0] < PROBE_PERIOD}
        known = {pod.uid: self._probed[pod.uid] for pod in engines if pod.uid in self._probed}
        due = [pod for pod in engines if pod.uid not in known]
        # All at once: where packets are dropped each probe waits its full time, and there may be many engines.
        answers = await asyncio.gather(*(self._probe_ports(pod) for pod in due))
        fresh = {pod.uid: (now, answer) for pod, answer in zip(due, answers, strict=True)}
        self._probed |= fresh
        return {uid: answer for uid, (_, answer) in (known | fresh).items()}

    async def _probe_ports(self, pod: Pod) -> PortProbe:
        ports = (ENGINE_API_PORT, ENGINE_KV_EVENTS_PORT, ENGINE_INTERNAL_PORT)
        while True:
            api, events, control = await asyncio.gather(*(_connects(*self.locate(pod, port)) for port in ports))
            if control or not await self._may_ask_again(pod):
                return PortProbe(api_open=api, events_open=events, control_open=control)

    async def _report(self, shape: type[Report], pod: Pod, port: int, ca: bytes | None, server_name: str) -> Report | None:
        while True:
            host, number = self.locate(pod, port)
            try:
                report = shape.read(await _fetch(host, number, ca=ca, server_name=server_name))
            except (ReportError, DocumentError):
                if not await self._may_ask_again(pod):
                    return None
            else:
                return report if report.pod_uid == pod.uid else None

    async def _may_ask_again(self, pod: Pod) -> bool:
        """Whether the operator is so new that the pod's silence may be its own; then some time has passed."""
        if not pod.ready or self.clock() - self._born >= self.settle_seconds:
            return False
        await asyncio.sleep(0.5)
        return True


async def _fetch(host: str, port: int, *, ca: bytes | None, server_name: str) -> bytes:
    """The body of `GET /status`.

    Raises:
        ReportError: no such answer from the holder of a certificate for `server_name`.
    """
    if ca is None:
        raise ReportError("no CA to check the pod's certificate with")
    try:
        context = ssl.create_default_context(cadata=ca.decode("ascii"))
        timeout = aiohttp.ClientTimeout(total=REPORT_SECONDS)
        address = f"[{host}]" if ":" in host else host
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(
                f"https://{address}:{port}{STATUS_PATH}", ssl=context, server_hostname=server_name, allow_redirects=False
            ) as answer,
        ):
            if answer.status != 200:
                raise ReportError(f"the pod answered {answer.status}")
            body = b""
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > REPORT_LIMIT:
                    raise ReportError(f"the pod's report is longer than {REPORT_LIMIT} bytes")
            return body
    except (aiohttp.ClientError, OSError, TimeoutError, UnicodeDecodeError) as error:
        raise ReportError(f"no answer: {type(error).__name__}") from None


async def _connects(host: str, port: int) -> bool:
    """Whether a TCP connection opens."""
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
