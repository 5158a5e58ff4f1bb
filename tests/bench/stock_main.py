"""Stock vLLM as the benches start it: no plugin, plain HTTP on loopback, and the same scheduler setting as the engine beside it.

The CPU platform switches asynchronous scheduling off; where a bench puts it back, both of its engines do, so they differ in the
plugin alone.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["VLLM_PLUGINS"] = ""
os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"

from vllm.platforms.cpu import CpuPlatform
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

_update, _make = CpuPlatform.check_and_update_config.__func__, CPUModelRunner.__init__


def check_and_update_config(cls: Any, config: Any) -> None:
    _update(cls, config)
    config.scheduler_config.async_scheduling = os.environ["HARNESS_ASYNC"] == "1"


def make_runner(self: Any, *args: Any, **kwargs: Any) -> None:
    _make(self, *args, **kwargs)
    self.use_async_scheduling = False


CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
CPUModelRunner.__init__ = make_runner

if __name__ == "__main__":
    from vllm.entrypoints.launchers.api_server.entry import main

    sys.argv = ["vllm", *sys.argv[1:]]
    main()
