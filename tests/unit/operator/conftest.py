"""Shared values of the operator's unit tests: an owner, a clock that stands still, randomness that can be repeated, and a world
that takes plans."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from blockwarden_operator.observed import Observed
from blockwarden_operator.plan import Plan, plan_policy
from blockwarden_operator.render.names import Owner
from blockwarden_operator.settings import PodSelection, Settings

Entropy = Callable[[int], bytes]

SETTINGS = Settings(
    operator=PodSelection("ops", {"app": "operator"}),
    dns=PodSelection("kube-system", {"k8s-app": "kube-dns"}),
    engine_image="engine:1",
    gateway_image="gateway:1",
)
POLICY = yaml.safe_load("""
metadata: {name: demo, namespace: ns, uid: uid-1, generation: 4}
spec:
  model: {name: tiny, source: {path: /models/tiny}}
  tenants:
  - {name: acme, kvCache: {guaranteed: 40%}}
  - {name: globex, kvCache: {guaranteed: 40%}}
""")


class World:
    """A cluster that takes plans: what was applied is there the next time."""

    def __init__(self, now: datetime, entropy: Entropy) -> None:
        self.entropy = entropy
        self.observed = Observed(policy=copy.deepcopy(POLICY), children={}, now=now)

    def plan(self, **changes: Any) -> Plan:
        self.observed = replace(self.observed, **changes)
        return plan_policy(self.observed, SETTINGS, self.entropy)

    def take(self, **changes: Any) -> Plan:
        plan = self.plan(**changes)
        children = {(m["kind"], m["metadata"]["name"]): copy.deepcopy(m) for m in plan.apply}
        kept = {ref: m for ref, m in self.observed.children.items() if ref not in plan.delete}
        policy = {**self.observed.policy, "status": plan.status}
        self.observed = replace(self.observed, children={**kept, **children}, policy=policy)
        return plan

    def spec(self, **changes: Any) -> None:
        policy = copy.deepcopy(self.observed.policy)
        policy["spec"] |= changes
        policy["metadata"]["generation"] += 1
        self.observed = replace(self.observed, policy=policy)


class Stream:
    """Deterministic bytes that never repeat within one stream."""

    def __init__(self, seed: str) -> None:
        self.seed, self.drawn = seed, 0

    def __call__(self, count: int) -> bytes:
        self.drawn += 1
        return hashlib.shake_256(f"{self.seed}/{self.drawn}".encode()).digest(count)


@pytest.fixture
def entropy() -> Stream:
    return Stream("unit")


@pytest.fixture
def make_entropy() -> Callable[[str], Stream]:
    return Stream


@pytest.fixture
def owner() -> Owner:
    return Owner("shared-llama", "inference", "8b9f5a52-0000-4000-8000-000000000001")


@pytest.fixture
def now() -> datetime:
    return datetime(2026, 11, 1, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
def make_world(now: datetime) -> Callable[[], World]:
    return lambda: World(now, Stream("world"))


@pytest.fixture
def world(make_world: Callable[[], World]) -> World:
    return make_world()
