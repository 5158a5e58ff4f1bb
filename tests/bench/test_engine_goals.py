"""The benches' goals as tests: a quiet tenant beside a flood, and what the plugin costs."""

from __future__ import annotations

import math
import random
import statistics
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

HERE = Path(__file__).parent
pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]


@pytest.fixture
def engine_pair(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _load("engine_pair", monkeypatch)


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _load("cost", monkeypatch)


@pytest.fixture
def neighbour(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _load("neighbour", monkeypatch)


class Falters:
    """A server whose flood is none: it refuses, or reports that the flooding tenant is below its quota."""

    name = "broken"

    def __init__(self, *, refuses: bool = False, running: int = 8, waiting: int = 40, owned: int = 76) -> None:
        self._refuses = refuses
        self._tenant = SimpleNamespace(name="flood", running=running, waiting=waiting, owned_blocks=owned, limit_blocks=76)
        self._ended = threading.Event()

    def connect(self) -> Any:
        return SimpleNamespace(sock=SimpleNamespace(shutdown=lambda _how: self._ended.set()), close=lambda: None)

    def complete(self, *_: Any, **__: Any) -> Any:
        if self._refuses:
            raise RuntimeError("403")
        self._ended.wait(60)
        return SimpleNamespace(read=lambda: b"")

    def report(self) -> Any:
        return SimpleNamespace(tenants=(self._tenant,))


def _load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(HERE)
    __import__(name)
    return sys.modules[name]


def test_a_flood_does_not_hold_up_a_quiet_tenant(neighbour: ModuleType, engine_pair: ModuleType) -> None:
    ours = neighbour.measure(40, engine_pair.our_engine)["ours"]
    print(neighbour.show("ours", ours))
    assert len(ours.crowded) >= 30
    assert ours.ratio <= neighbour.GOAL


def test_a_flood_that_falters_fails_the_bench(neighbour: ModuleType) -> None:
    for broken in (Falters(refuses=True), Falters(running=8, waiting=0), Falters(running=2, owned=10)):
        with pytest.raises(neighbour.FloodFaltered), neighbour.flooded(broken, neighbour.Measured()):
            pytest.fail("measured beside a flood that is none")


def test_the_plugin_costs_less_than_its_bound(cost: ModuleType) -> None:
    result = cost.measure(minutes=0)  # as many starts as there must be; what other starts would tell, `make bench` goes on to ask
    print(cost.show("processor time", result.cpu), cost.show("wall time", result.wall))
    assert cost.judge(*cost.over_turns(result.cpu)) == "pass"
    assert result.decided_differences == 0


def test_an_interval_narrows_with_turns_and_a_cost_would_show(cost: ModuleType) -> None:
    steady = [0.05 + 0.001 * (-1) ** at for at in range(20)]
    mean, half = cost.interval(steady)
    assert mean == pytest.approx(0.05)
    assert half < cost.GOAL
    assert cost.judge(mean, half) == "fail"
    assert cost.judge(mean - 0.05, half) == "pass"
    assert cost.judge(0.02, 0.02).startswith("undecided")
    assert cost.interval([0.0])[1] == math.inf


def test_an_interval_knows_that_a_start_is_a_matter_of_luck(cost: ModuleType) -> None:
    starts = [0.0, 0.03, -0.03, 0.0]
    turns = [start + 0.001 * (-1) ** at for start in starts for at in range(cost.TURNS)]
    assert cost.interval(turns)[1] == pytest.approx(3.18 * statistics.stdev(starts) / 2)
    assert cost.over_turns(turns)[1] < cost.interval(turns)[1]
    assert not cost.Measured(wall=turns, cpu=turns).narrow


def test_where_answers_part_the_reference_says_how_close_it_was(cost: ModuleType) -> None:
    reference = {"token_ids": [5, 6, 7], "logprobs": {"top_logprobs": [{"a": -0.1, "b": -3.0}] * 3}}
    assert cost.first_difference(reference, {"token_ids": [5, 6, 7]}) is None
    assert cost.first_difference(reference, {"token_ids": [5, 9, 7]}) == pytest.approx(2.9)


def test_two_servers_are_never_left_on_one_core(cost: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[tuple[str, int]] = []
    monkeypatch.setattr(cost, "pin", lambda threads, core: places.append((threads, core)))
    monkeypatch.setattr(cost, "SWAP_SECONDS", 0.001)
    servers = [SimpleNamespace(threads=lambda: "stock"), SimpleNamespace(threads=lambda: "ours")]
    with cost.swapping(servers, random.Random(1)):
        deadline = time.monotonic() + 10
        while len(places) < 20 and time.monotonic() < deadline:
            time.sleep(0.001)
    assert len(places) >= 20
    rounds = [dict(places[at : at + 2]) for at in range(0, len(places), 2)]
    assert all(len(set(place.values())) == 2 and place.keys() == {"stock", "ours"} for place in rounds)
    assert all(before != after for before, after in pairwise(rounds))
