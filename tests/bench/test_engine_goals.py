"""The benches' goals for the engine, as tests: a quiet tenant beside a flood, and what the plugin costs."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent
pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _load("cost", monkeypatch)


@pytest.fixture
def neighbour(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _load("neighbour", monkeypatch)


def _load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(HERE)
    __import__(name)
    return sys.modules[name]


def test_a_flood_does_not_hold_up_a_quiet_tenant(neighbour: ModuleType) -> None:
    medians = neighbour.measure(30)
    ratios = {name: crowded / alone for name, (alone, crowded) in medians.items()}
    print(f"first token beside a flood, ratio of medians: stock {ratios['stock']:.2f}, ours {ratios['ours']:.2f}")
    assert ratios["ours"] <= neighbour.GOAL


def test_the_plugin_costs_less_than_three_percent_of_processor_time(cost: ModuleType) -> None:
    result = cost.measure(40, 12)
    print(f"{cost.show('wall', result['wall'])}; {cost.show('cpu', result['cpu'])}; {result['ended']}")
    mean, half = cost.interval(result["cpu"])
    assert math.exp(mean + half) < 1.03
    assert result["decided_differences"] == 0


def test_an_interval_narrows_with_pairs_and_a_cost_would_show(cost: ModuleType) -> None:
    steady = [0.05 + 0.001 * (-1) ** at for at in range(20)]
    mean, half = cost.interval(steady)
    assert mean == pytest.approx(0.05)
    assert half < cost.GOAL
    assert math.exp(mean + half) > 1.03
    assert cost.interval([0.0])[1] == math.inf
