"""Loads the rules that the pure ledger and the pool over vLLM's share: test directories are no packages."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"blockwarden_tests_{name}", Path(__file__).with_name(f"{name}.py"))
    if spec is not None and spec.name in sys.modules:
        return sys.modules[spec.name]
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "twin" in metafunc.fixturenames:
        _load("pool_world")
        twins = _load("planted_bugs").TWINS
        metafunc.parametrize("twin", twins.values(), ids=twins)


@pytest.fixture(scope="session")
def world() -> ModuleType:
    """`pool_world`: profiles, parts, and the count of steps."""
    return _load("pool_world")


@pytest.fixture(scope="session")
def rules(world: ModuleType) -> ModuleType:
    """`pool_rules`, over the same `pool_world`."""
    return _load("pool_rules")
