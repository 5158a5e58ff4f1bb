"""Two engines side by side for the benches: stock vLLM and the same with the plugin, same model, arguments and scheduler.

Both run at once and take turns, so whatever else the machine does meets both alike. What is measured is the whole tree of an
engine's processes, HTTP server included; the plugin's engine pays for its mutual TLS as well.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from blockwarden_core.report import EngineReport

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


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

    def cpu_seconds(self) -> float:
        """Processor time of the whole process tree so far, user and system."""
        total = 0.0
        for process in (self.process, *self.process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

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


@contextlib.contextmanager
def engine_pair(model_directory: Path, arguments: list[str], shares: Any) -> Iterator[tuple[Server, Server]]:
    """(stock, ours), both ready.

    Args:
        model_directory: what both serve.
        arguments: vLLM arguments for both.
        shares: tenants of the plugin's engine.
    """
    kit = harness()
    with contextlib.ExitStack() as stack:
        engines = kit.Engines(model_directory)
        stack.callback(engines.stop)
        ours = engines.make(arguments=[*arguments, "--served-model-name=bench", "--kv-scrub-verify=Off"])
        ours.deployment.share(*shares)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stock = stack.enter_context(stock_engine(model_directory, arguments, scratch, ours.environment))
        ours.start()
        yield (
            stock,
            Server(
                "ours", ours.connection, lambda tenant, user: str(ours.deployment.token(tenant, user=user)),
                psutil.Process(ours.process.pid), ours.report,
            ),
        )  # fmt: skip


@contextlib.contextmanager
def stock_engine(model_directory: Path, arguments: Sequence[str], scratch: Path, environment: dict[str, str]) -> Iterator[Server]:
    """Stock vLLM under the same model and arguments, ready; its log is in `scratch`."""
    port = _free_port()
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


def _free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
