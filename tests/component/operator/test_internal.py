"""Reports over TLS and port probes, against real sockets on loopback: whom the operator believes, and what it calls open."""

from __future__ import annotations

import secrets
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from blockwarden_core.report import GatewayReport
from blockwarden_operator.internal import PROBE_SECONDS, REPORT_LIMIT, Inspector
from blockwarden_operator.observed import Pod, PortProbe
from blockwarden_operator.pki import Pki, plan_pki
from blockwarden_operator.render.names import Component, Owner

OWNER = Owner("demo", "ns", "uid-1")
POD = Pod("gateway-1", "pod-1", "10.0.0.1", "gateway", True, False, None)
NAME = OWNER.server_name(Component.GATEWAY)
REPORT = GatewayReport(pod_uid="pod-1", policy_version=1, secret_id="s", generations={}, in_flight={}, engines=()).text()


def certificates() -> Pki:
    return plan_pki(OWNER, {}, now=datetime.now(UTC), entropy=secrets.token_bytes)


@asynccontextmanager
async def pod(pki: Pki, secret: str, folder: Path, answer: Callable[[], web.Response]) -> AsyncIterator[int]:
    """A pod's internal port under one of the policy's certificates; yields the port."""
    for file in ("tls.crt", "tls.key"):
        (folder / file).write_bytes(pki.data[secret][file])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")

    async def status(_: web.Request) -> web.Response:
        return answer()

    app = web.Application()
    app.router.add_get("/status", status)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def ask(port: int, ca: bytes | None, name: str = NAME) -> GatewayReport | None:
    inspector = Inspector(True, lambda: 0.0, lambda *_: ("127.0.0.1", port))
    return (await inspector.observe_gateways((POD,), ca=ca, server_name=name))["pod-1"]


async def test_a_pod_with_the_policys_certificate_is_believed(tmp_path: Path) -> None:
    pki = certificates()
    async with pod(pki, OWNER.gateway_internal_tls, tmp_path, lambda: web.Response(text=REPORT)) as port:
        report = await ask(port, pki.data[OWNER.ca]["ca.crt"])
    assert report is not None
    assert report.pod_uid == "pod-1"


@pytest.mark.parametrize(("settle", "believed"), [(10.0, True), (0.0, False)], ids=["new operator", "twin: no patience"])
async def test_a_new_operator_asks_again_where_the_network_does_not_let_it_through_yet(
    settle: float, believed: bool, tmp_path: Path
) -> None:
    pki, open_after = certificates(), time.monotonic() + 1.2
    async with pod(pki, OWNER.gateway_internal_tls, tmp_path, lambda: web.Response(text=REPORT)) as port:
        with socket.create_server(("127.0.0.1", 0)) as closing:
            shut = closing.getsockname()[1]

        def locate(_pod: Pod, _port: int) -> tuple[str, int]:
            return "127.0.0.1", port if time.monotonic() > open_after else shut

        inspector = Inspector(True, time.monotonic, locate, settle_seconds=settle)
        ca = pki.data[OWNER.ca]["ca.crt"]
        reports = await inspector.observe_gateways((POD,), ca=ca, server_name=NAME)
        probes = await inspector.observe_ports((POD,))
    assert (reports["pod-1"] is not None) is believed
    assert probes is not None
    assert probes["pod-1"].control_open is believed


@pytest.mark.parametrize(
    "case", ["another policy's CA", "no CA", "the engine's name", "the engine's certificate", "a client's certificate"]
)
async def test_a_pod_that_cannot_prove_itself_is_not(case: str, tmp_path: Path) -> None:
    pki = certificates()
    ca: bytes | None = pki.data[OWNER.ca]["ca.crt"]
    name, secret = NAME, OWNER.gateway_internal_tls
    if case == "another policy's CA":
        ca = certificates().data[OWNER.ca]["ca.crt"]
    elif case == "no CA":
        ca = None
    elif case == "the engine's name":
        name = OWNER.server_name(Component.ENGINE)
    else:
        secret = OWNER.engine_tls if case == "the engine's certificate" else OWNER.gateway_client_tls
    async with pod(pki, secret, tmp_path, lambda: web.Response(text=REPORT)) as port:
        assert await ask(port, ca, name) is None


@pytest.mark.parametrize(
    "answer",
    [
        lambda: web.Response(status=503, text=REPORT),
        lambda: web.Response(status=302, headers={"Location": "/status"}),
        lambda: web.Response(text=REPORT.replace("pod-1", "pod-2")),
        lambda: web.Response(text=REPORT.replace("GatewayReport", "EngineReport")),
        lambda: web.Response(text="{}"),
        lambda: web.Response(text=REPORT + " " * REPORT_LIMIT),
    ],
    ids=["unavailable", "redirect", "another pod", "another kind", "no report", "too long"],
)
async def test_an_answer_that_is_no_report_of_this_pod_counts_as_none(answer: Callable[[], web.Response], tmp_path: Path) -> None:
    pki = certificates()
    async with pod(pki, OWNER.gateway_internal_tls, tmp_path, answer) as port:
        assert await ask(port, pki.data[OWNER.ca]["ca.crt"]) is None


async def test_open_and_closed_ports_are_told_apart_and_not_asked_for_again_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_server(("127.0.0.1", 0)) as dead:
        is_open, closed = listening.getsockname()[1], dead.getsockname()[1]
        dead.close()
        now = [0.0]
        where = {8000: closed, 5557: closed, 9400: is_open}
        inspector = Inspector(True, lambda: now[0], lambda _, port: ("127.0.0.1", where[port]))
        shut = PortProbe(api_open=False, events_open=False, control_open=True)
        assert await inspector.observe_ports((POD,)) == {"pod-1": shut}
        where[8000] = is_open
        assert await inspector.observe_ports((POD,)) == {"pod-1": shut}
        now[0] = 61.0
        assert await inspector.observe_ports((POD,)) == {"pod-1": PortProbe(api_open=True, events_open=False, control_open=True)}


async def test_outside_the_pod_network_nothing_is_said_about_ports() -> None:
    assert await Inspector(False, lambda: 0.0).observe_ports((POD,)) is None


async def test_many_silent_pods_are_probed_side_by_side() -> None:
    """A listener that is full answers nothing, as where packets are dropped: each probe then waits its full time."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        pods = tuple(Pod(f"engine-{n}", f"e{n}", "10.0.0.1", "engine", True, False, None) for n in range(10))
        inspector = Inspector(True, lambda: 0.0, lambda *_: ("127.0.0.1", full.getsockname()[1]))
        began = time.monotonic()
        found = await inspector.observe_ports(pods)
        took = time.monotonic() - began
        for each in waiting:
            each.close()
    assert found == {pod.uid: PortProbe(api_open=False, events_open=False, control_open=False) for pod in pods}
    assert took < 3 * PROBE_SECONDS
