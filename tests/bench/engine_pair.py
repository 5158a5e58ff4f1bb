"""Two engines side by side for the benches: stock vLLM and the same with the plugin, same model, arguments and scheduler.

Both run at once, so what slows the whole machine meets both alike; what slows one core does not (see cost.py). What is measured
is the whole tree of an engine's processes, HTTP server included; the plugin's engine pays for its mutual TLS as well.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from blockwarden_core.report import EngineReport

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@cache
def harness() -> ModuleType:
    """The engine harness of the integration tests."""
    path = ROOT / "tests/integration/engine/conftest.py"
    spec = importlib.util.spec_from_file_location("engine_harness", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def model(name: str) -> Path:
    """The directory of a model, made if need be."""
    done = subprocess.run([sys.executable, ROOT / "tools/models.py", name], check=True, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.strip().splitlines()[-1])


@dataclass
class Server:
    """One running engine: how to talk to it, as whom, what it reports (stock: nothing) and has used of the processors."""

    name: str
    connect: Callable[[], http.client.HTTPConnection]
    salt: Callable[[str, str], str | None]
    process: psutil.Process
    report: Callable[[], EngineReport | None]

    def threads(self) -> list[int]:
        """Every thread of the whole process tree."""
        return [thread.id for process in self._tree() for thread in process.threads()]

    def cpu_seconds(self) -> float:
        """Processor time of the whole process tree so far, user and system."""
        total = 0.0
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def _tree(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]

    def complete(self, connection: http.client.HTTPConnection, tenant: str, user: str, **fields: Any) -> http.client.HTTPResponse:
        """Sends one greedy completion; the response's body is still to be read."""
        body = {"model": "bench", "temperature": 0, "ignore_eos": True, "return_token_ids": True} | fields
        if salt := self.salt(tenant, user):
            body["cache_salt"] = salt
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{self.name}: {response.status} {response.read()[:300]!r}")
        return response


ONE_CORE = {"OMP_NUM_THREADS": "1", "THP_MEM_ALLOC_ENABLE": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""The environment of an engine that has one core. Tensors lie on huge pages where the kernel allows it: with small ones, which
lines of the cache a process got when it started changes its speed by percents."""


def pin(threads: list[int], core: int) -> None:
    """The threads run on this core from now on."""
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread, {core})


@contextlib.contextmanager
def engine_pair(
    model_directory: Path, arguments: list[str], shares: Any, *, asynchronous: bool = True,
    environment: Mapping[str, str] | None = None, ours_first: bool = False, control: bool = False,
) -> Iterator[tuple[Server, Server]]:  # fmt: skip
    """(stock, ours), both ready.

    Args:
        model_directory: what both serve.
        arguments: vLLM arguments for both.
        shares: tenants of the plugin's engine.
        asynchronous: schedule each step while the one before it runs, which vLLM does not do on a CPU by itself.
        environment: variables of both, over the harness's.
        ours_first: the order in which they start; they are yielded in the same one.
        control: stock vLLM in the place of ours too: what tells the two apart is wrong then.
    """
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(_made(model_directory, arguments, shares, asynchronous))
        ours.environment |= environment or {}

        def stock() -> Server:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            return stack.enter_context(_stock(model_directory, arguments, scratch, ours.environment))

        makers = [stock, stock if control else lambda: _started(ours)]
        started = {at: makers[at]() for at in ((1, 0) if ours_first else (0, 1))}
        yield started[0], started[1]


@contextlib.contextmanager
def our_engine(model_directory: Path, arguments: list[str], shares: Any, *, asynchronous: bool = True) -> Iterator[tuple[Server]]:
    """The plugin's engine of `engine_pair` without the stock one."""
    with _made(model_directory, arguments, shares, asynchronous) as ours:
        yield (_started(ours),)


@contextlib.contextmanager
def _made(model_directory: Path, arguments: list[str], shares: Any, asynchronous: bool) -> Iterator[Any]:
    engines = harness().Engines(model_directory)
    try:
        own = ["--served-model-name=bench", "--kv-scrub-verify=Off"]
        ours = engines.make(asynchronous=asynchronous, arguments=[*arguments, *own])
        ours.deployment.share(*shares)
        yield ours
    finally:
        engines.stop()


def _started(ours: Any) -> Server:
    ours.start()
    return Server(
        "ours", ours.connection, lambda tenant, user: str(ours.deployment.token(tenant, user=user)),
        psutil.Process(ours.process.pid), ours.report,
    )  # fmt: skip


@contextlib.contextmanager
def _stock(model_directory: Path, arguments: list[str], scratch: Path, environment: dict[str, str]) -> Iterator[Server]:
    port = harness_port()
    command = [
        sys.executable, str(HERE / "stock_main.py"), f"--model={model_directory}", "--served-model-name=bench", *arguments,
        "--enable-prefix-caching", "--prefix-caching-hash-algo=sha256", "--enable-prompt-tokens-details",
        "--disable-uvicorn-access-log", "--host=127.0.0.1", f"--port={port}",
    ]  # fmt: skip
    with (scratch / "stock.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        _wait_ready(port, process, scratch / "stock.log")
        yield Server(
            "stock", lambda: http.client.HTTPConnection("127.0.0.1", port, timeout=300), lambda _tenant, _user: None,
            psutil.Process(process.pid), lambda: None,
        )  # fmt: skip
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        for child in [*children, *([psutil.Process(process.pid)] if process.poll() is None else [])]:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def harness_port() -> int:
    """A port that is free now."""
    port: int = harness()._free_port()
    return port


def _wait_ready(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(OSError),
            contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection,
        ):
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.5)
    raise RuntimeError(f"stock vLLM is not ready:\n{log.read_text(errors='replace')[-2000:]}")
