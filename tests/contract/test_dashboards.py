"""The dashboards ask for metrics that gateways and engines really have."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from blockwarden_core.report import EngineReport, PoolBlocks, TenantBlocks
from blockwarden_engine.metrics import render_metrics
from blockwarden_gateway.metrics import Metrics

DASHBOARDS = sorted((Path(__file__).resolve().parents[2] / "helm/blockwarden/dashboards").glob("*.json"))


def gateway_samples() -> dict[str, set[str]]:
    """Sample names of a gateway, each with its labels."""
    metrics = Metrics()
    metrics.requests.labels("acme", "chat", "200").inc()
    metrics.first_token.labels("acme", "chat").observe(0.1)
    metrics.tokens.labels("acme", "prompt").inc()
    return samples(metrics.show({"acme": 1}, {"acme": {"1": 0}}, {True: 1}, {("1", "2"): 1}))


def engine_samples() -> dict[str, set[str]]:
    """Sample names of an engine, each with its labels."""
    tenant = TenantBlocks(
        name="acme", generation=1, floor=1, guaranteed_blocks=4, limit_blocks=4, owned_blocks=1, running=0, waiting=0,
        stale_blocks=0, stale_requests=0,
    )  # fmt: skip
    pool = PoolBlocks(total=8, clean=7, owned=1, dirty=0, scrubbing=0)
    report = EngineReport(pod_uid="p", boot_nonce="n", policy_version=1, pool=pool, tenants=(tenant,), counters={})
    return samples(render_metrics(report, ()))


def samples(page: bytes) -> dict[str, set[str]]:
    return {
        sample.name: set(sample.labels) for family in text_string_to_metric_families(page.decode()) for sample in family.samples
    }


def queries(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_metric_and_label_exists(path: Path) -> None:
    known = gateway_samples() | engine_samples()
    asked = queries(json.loads(path.read_text()))
    assert len(asked) > 10
    for query in asked:
        names = set(re.findall(r"blockwarden_\w+", query))
        assert names and names <= set(known), query
        labels = set(re.findall(r"(\w+)=~?\"", query)) | set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", query))))
        assert labels - {"namespace"} <= set().union(*(known[name] for name in names)), query


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_panel_says_what_it_shows_and_has_a_place_of_its_own(path: Path) -> None:
    panels = json.loads(path.read_text())["panels"]
    assert all(panel.get("description") for panel in panels if panel["type"] != "row")
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) == 23
