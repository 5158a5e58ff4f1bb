"""A policy as the apiserver would hold it, and a plan with nothing left to chance."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from blockwarden_operator.api import TenantPolicy
from blockwarden_operator.checks import secret_references
from blockwarden_operator.observed import Observed
from blockwarden_operator.plan import Plan, plan_policy
from blockwarden_operator.render.names import Owner
from blockwarden_operator.render.weights import weights_job
from blockwarden_operator.salts import encode_data
from blockwarden_operator.settings import PodSelection, Settings

ROOT = Path(__file__).parents[3]
UID = "8b9f5a52-0000-4000-8000-000000000001"
SETTINGS = Settings(
    operator=PodSelection("blockwarden-system", {"app.kubernetes.io/name": "blockwarden-operator"}),
    dns=PodSelection("kube-system", {"k8s-app": "kube-dns"}),
    engine_image="blockwarden/engine:0.1.0",
    gateway_image="blockwarden/gateway:0.1.0",
)


def plan_example(path: Path) -> Plan:
    """The first plan for an example policy whose Secrets, volumes and weights are there."""
    manifest: dict[str, Any] = yaml.safe_load(path.read_text())
    manifest["metadata"] = {"namespace": "inference", **manifest["metadata"], "uid": UID, "generation": 1}
    spec = TenantPolicy.of(manifest).spec
    owner = Owner(manifest["metadata"]["name"], manifest["metadata"]["namespace"], UID)
    referenced: dict[str, dict[str, Any] | None] = {}
    for reference in secret_references(spec):
        data = {key: hashlib.sha256(f"{reference.name}/{key}".encode()).hexdigest() for key in reference.keys}
        secret = referenced.setdefault(reference.name, {"metadata": {"name": reference.name}, "data": {}})
        assert secret is not None
        secret["data"].update(encode_data(data))
    claim = spec.model.source.persistent_volume_claim
    job = weights_job(spec, owner)
    done = {"metadata": {"name": job, "uid": "job"}, "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    observed = Observed(
        policy=manifest,
        children={("Job", job): done} if job else {},
        now=datetime(2026, 11, 1, 12, 0, 0, tzinfo=UTC),
        referenced=referenced,
        volume_claims=frozenset({claim.name} if claim else ()),
    )
    drawn = 0

    def entropy(count: int) -> bytes:
        nonlocal drawn
        drawn += 1
        return hashlib.shake_256(f"golden/{drawn}".encode()).digest(count)

    return plan_policy(observed, SETTINGS, entropy)


@pytest.fixture
def example_plan() -> Callable[[Path], Plan]:
    return plan_example
