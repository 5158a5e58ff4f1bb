"""The process: builds the parts, runs two servers and the watchers in one event loop, and ends without losing a request."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import uvicorn

from .app import Gateway
from .dispatch import Dispatcher
from .engines.client import AiohttpUpstream
from .engines.fleet import Fleet, Resolve, resolve
from .engines.probe import attest
from .internal import Internal
from .logs import Log
from .metrics import Metrics
from .mounts import Mounts
from .protocol import GuardedProtocol
from .settings import Settings
from .tls import Certificates

KEEP_ALIVE_SECONDS: Final = 75


class _Server(uvicorn.Server):
    """A server that leaves signals to the process: one signal must reach both of them in order."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Process:
    """Everything of one gateway process, for as long as `run` takes."""

    def __init__(self, settings: Settings, log: Log, *, resolve: Resolve = resolve) -> None:
        """Reads every mounted file.

        Raises:
            StartError: one is missing or unusable.
        """
        self._settings, self._log, self._resolve = settings, log, resolve
        self._metrics = Metrics()
        self._certificates = Certificates(settings.root, public=settings.public_tls, log=log)
        self.mounts = Mounts(settings.root, policy_uid=settings.policy_uid, log=log, metrics=self._metrics)
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        """Serves until `stopping` is set, then drains."""
        settings = self._settings
        upstream = AiohttpUpstream(lambda: self._certificates.client)
        fleet = Fleet(
            material=lambda: self.mounts.material,
            attest=partial(attest, upstream),
            resolve=self._resolve,
            log=self._log,
            metrics=self._metrics,
        )
        dispatcher = Dispatcher(mounts=self.mounts, fleet=fleet, upstream=upstream, metrics=self._metrics)
        public = Gateway(settings=settings, mounts=self.mounts, dispatcher=dispatcher, log=self._log, metrics=self._metrics)
        internal = Internal(
            pod_uid=settings.pod_uid,
            mounts=self.mounts,
            certificates=self._certificates,
            fleet=fleet,
            dispatcher=dispatcher,
            metrics=self._metrics,
        )
        watchers = (
            self.mounts.watch(settings.reload_seconds),
            self._certificates.watch(settings.reload_seconds),
            fleet.run(settings.resolve_seconds),
        )
        try:
            await self._serve(public, internal, watchers)
        finally:
            await upstream.close()

    async def _serve(self, public: Gateway, internal: Internal, watchers: tuple[Any, ...]) -> None:
        settings, certificates = self._settings, self._certificates
        front = _Server(_config(settings, public, settings.public_port, certificates.public))
        back = _Server(_config(settings, internal, settings.internal_port, certificates.internal))
        async with asyncio.TaskGroup() as group:  # a watcher that dies ends the process: better none than a blind one
            tasks = [group.create_task(watcher) for watcher in watchers]
            group.create_task(back.serve())
            serving = group.create_task(front.serve())
            self._log.write("start", public_port=settings.public_port, internal_port=settings.internal_port)
            await self.stopping.wait()
            self._log.write("drain")
            internal.draining = True
            await asyncio.sleep(settings.linger_seconds)
            front.should_exit = True
            await serving
            back.should_exit = True
            for task in tasks:
                task.cancel()
        self._log.write("stop")


def _config(settings: Settings, app: Callable[..., Any], port: int, context: ssl.SSLContext | None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=port,
        loop="none",  # the loop is running already
        http=GuardedProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",  # its warnings tell of malformed requests: anybody could fill a disk with them
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=round(settings.drain_seconds),
        ssl_context_factory=(lambda _config, _default: context) if context is not None else None,
    )


async def serve(settings: Settings, log: Log) -> None:
    """Runs the gateway until SIGTERM or SIGINT."""
    process = Process(settings, log)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.stopping.set)
    await process.run()
