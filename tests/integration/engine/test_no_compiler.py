"""A request for log probabilities where there is no C++ compiler, as in the engine's image: it once took the engine down.

The function that vLLM compiles at the first such request, called as the launcher has a machine without a compiler call it, and as
it would be called without that.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from blockwarden_engine.launch import plan_launch, run_eagerly

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

CALL = """
import torch
from vllm.v1.sample.ops.logprobs import batched_count_greater_than
print(batched_count_greater_than(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[1.5]])).tolist())
"""
ENVIRON = {"BLOCKWARDEN_POLICY_UID": "p", "BLOCKWARDEN_POD_UID": "u"}


def called_without_compiler(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The call in a process whose PATH holds nothing."""
    bare = {name: value for name, value in os.environ.items() if name != "CXX"}
    bare |= {"PATH": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")} | environment
    return subprocess.run([sys.executable, "-c", CALL], env=bare, capture_output=True, text=True, check=False)


def test_log_probabilities_need_no_compiler(tmp_path: Path) -> None:
    launch = run_eagerly(plan_launch(["--model=/m"], ENVIRON, boot_nonce="n"))
    done = called_without_compiler(tmp_path, TORCHDYNAMO_DISABLE=launch.environment["TORCHDYNAMO_DISABLE"])
    assert (done.returncode, done.stdout.strip()) == (0, "[2]"), done.stderr[-500:]


def test_the_twin_that_compiles_fails(tmp_path: Path) -> None:
    done = called_without_compiler(tmp_path)
    assert done.returncode != 0
    assert "compiler" in done.stderr
