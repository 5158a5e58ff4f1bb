"""The engine as the tests start it: `python -m blockwarden_engine`, with a way in for tests.

Not collected by pytest: it is the main module of the engine's processes (each child process of vLLM imports it again). It changes
nothing that a test could be about. It adds a control socket through which tests run code in the engine core between two steps, or
call one of its own utilities, and, on request, puts the asynchronous scheduler back that vLLM's CPU platform switches off. The
runner stays synchronous then: the CPU has no device to overlap with, so it is the scheduler's bookkeeping that runs ahead, two
steps deep.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from blockwarden_engine import attest, installed, plugin

CONTROL = os.environ["HARNESS_CONTROL"]
ASYNCHRONOUS = os.environ["HARNESS_ASYNC"] == "1"
TWIN = os.environ.get("HARNESS_TWIN", "")
"""Code that breaks the engine on purpose, run in every process after the plugin was registered."""

_register, _bind = plugin.register, attest.Attester.bind


def register() -> None:
    """The plugin's entry point, then the harness."""
    first = not installed.HOOKS
    _register()
    if first:
        _force_scheduler()
        _open_core()
        exec(TWIN, {})


def _force_scheduler() -> None:
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    update, make = CpuPlatform.check_and_update_config.__func__, CPUModelRunner.__init__

    def check_and_update_config(cls: Any, config: Any) -> None:
        update(cls, config)
        config.scheduler_config.async_scheduling = ASYNCHRONOUS

    def make_runner(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        self.use_async_scheduling = False

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
    CPUModelRunner.__init__ = make_runner


def _open_core() -> None:
    from vllm.v1.engine.core import EngineCore

    def harness_run(self: Any, code: str) -> str:
        scope: dict[str, Any] = {"__name__": "harness", "core": self, "scheduler": self.scheduler, "result": None}
        exec(code, scope)
        return json.dumps(scope["result"])

    EngineCore.harness_run = harness_run


def bind(self: attest.Attester, client: Any) -> None:
    """Attester.bind, and the control socket beside it: a utility's name and arguments in, its answer out, a line of JSON each."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            try:
                name, *arguments = json.loads(line)
                answer = await client.engine_core.call_utility_async(name, *arguments)
            except Exception as error:
                answer = {"error": str(error)}
            writer.write(json.dumps(answer).encode() + b"\n")
        writer.close()

    self.control = asyncio.get_running_loop().create_task(asyncio.start_unix_server(serve, CONTROL, limit=1 << 20))
    _bind(self, client)


plugin.register, attest.Attester.bind = register, bind

if __name__ == "__main__":
    from blockwarden_engine.__main__ import main

    main(sys.argv[1:])
