"""The operator's process: settings → client → reconciler → queue, with kopf at the edge.

Whatever of it ends, ends the process: Kubernetes starts it anew, and a reconcile goes on from what is in the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

import kopf
from aiohttp import web

from .errors import ClusterError, MissingCRD, OperatorError, SettingsError
from .handlers import register
from .health import Health, make_app
from .internal import SETTLE_SECONDS, Inspector
from .kube import connect
from .queue import Key, QueueRunner
from .reconcile import Reconciler
from .render.names import FIELD_MANAGER
from .settings import Settings, read_settings

log = logging.getLogger("blockwarden_operator")
RECONCILE_SECONDS: Final = 120.0
"""The longest a reconcile may take: all its calls have shorter limits of their own."""


def kopf_settings() -> kopf.OperatorSettings:
    """kopf's settings: no peering, no cluster-wide scans, watches that cannot go silent, no log lines as Events."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.client_timeout = 600
    settings.watching.chunk_size = 500
    settings.networking.request_timeout = 30
    settings.posting.loggers = False
    settings.posting.reporting_component = FIELD_MANAGER
    return settings


def login_with(kubeconfig: str | None) -> Callable[..., Awaitable[kopf.ConnectionInfo | None]]:
    """kopf's credentials, by the rule of `kube.connect`: a kubeconfig where one is given, else the pod's service account. By two
    rules the watches and the writes could be two clusters'."""
    login = kopf.login_with_service_account if kubeconfig is None else kopf.login_with_kubeconfig

    async def log_in(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return login(**kwargs)

    return log_in


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set.

    Raises:
        MissingCRD: the cluster does not know TenantPolicies. ClusterError: there is no access to a cluster.
    """
    async with await connect(settings.kubeconfig) as kube:
        await kube.check_crd(next(iter(settings.watch_namespaces), None))
        health = Health(time.monotonic)
        reconciler = Reconciler(
            kube,
            Inspector(settings.probe, time.monotonic, settle_seconds=SETTLE_SECONDS),
            settings,
            secrets.token_bytes,
            lambda: datetime.now(UTC),
        )

        async def work(key: Key) -> float | None:
            with health.seconds.time():
                async with asyncio.timeout(RECONCILE_SECONDS):
                    again = await reconciler.reconcile(key)
            health.reconciles.inc()
            return again

        def failed(key: Key, error: Exception, delay: float) -> None:
            health.failures.inc()
            # Our own errors are safe to print; of others only the kind is, since a message may quote what it was about.
            reason = str(error) if isinstance(error, OperatorError) else type(error).__name__
            log.warning("reconciling %s/%s failed, again in %.0f s: %s", *key, delay, reason)

        runner = QueueRunner(work, time.monotonic, random.random, failed, on_beat=health.beat)
        health.watch_queue(lambda: len(runner.queue))

        def enqueue(key: Key) -> None:
            health.saw_event()
            runner.add(key)

        await _serve(settings, stop, health, runner, enqueue)


async def _serve(settings: Settings, stop: asyncio.Event, health: Health, runner: QueueRunner, enqueue: Any) -> None:
    registry, kopf_config = kopf.OperatorRegistry(), kopf_settings()
    kopf.on.login(registry=registry)(login_with(settings.kubeconfig))
    register(registry, kopf_config, enqueue)
    site = web.AppRunner(make_app(health), access_log=None)
    await site.setup()
    await web.TCPSite(site, None, settings.port).start()
    watches = kopf.operator(
        registry=registry,
        settings=kopf_config,
        clusterwide=not settings.watch_namespaces,
        namespaces=settings.watch_namespaces,
        stop_flag=stop,
    )
    tasks = {asyncio.create_task(watches), asyncio.create_task(runner.run())}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await site.cleanup()


async def _main(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await run(settings, stop)


def main() -> int:
    """The process; returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        asyncio.run(_main(read_settings(os.environ)))
    except (SettingsError, MissingCRD, ClusterError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
