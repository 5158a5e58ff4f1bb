"""What the charts render for typical values, whole; `UPDATE_GOLDEN=1` writes the files anew."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from stack.charts import API, Charts

pytestmark = pytest.mark.timeout(900)  # the first use on a machine builds helm
HERE = Path(__file__).parent
DIGEST = "sha256:" + "a" * 64
PEER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
ANTI = {
    "weight": 1,
    "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"noisy": "yes"}}},
}
EVERYTHING: dict[str, Any] = {
    "image": {"repository": "mirror/operator", "digest": DIGEST, "pullPolicy": "Always"},
    "workloadImages": {
        "gateway": {"repository": "mirror/gateway", "tag": "2"},
        "engine": {"repository": "mirror/engine", "digest": DIGEST},
    },
    "imagePrefixes": ["mirror", "registry.example/team"],
    "imagePullSecrets": [{"name": "registry-credentials"}],
    "watchNamespaces": ["team-a", "team-b"],
    "dns": {"namespace": "dns", "labels": {"app": "coredns", "tier": "node"}},
    "drainSeconds": 60,
    "rbac": {"aggregateUserRoles": False},
    "serviceAccount": {"name": "warden", "annotations": {"example.org/owner": "platform"}},
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "podLabels": {"example.org/team": "platform"},
    "podAnnotations": {"example.org/scrape": "no"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "infra", "operator": "Exists"}],
    "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": []}]}}
    },
    "priorityClassName": "system-cluster-critical",
    "networkPolicy": {"apiServerPorts": [16443]},
    "metrics": {"serviceMonitor": True, "interval": "1m", "allowFrom": [PEER]},
    "podDisruptionBudget": {"enabled": True},
}
POLICIES: dict[str, Any] = {
    "tenantPolicies": [
        {"name": "shared-llama", "spec": {"tenants": [{"name": "acme"}]}},
        {
            "name": "other",
            "namespace": "inference",
            "labels": {"team": "b"},
            "annotations": {"note": "x"},
            "spec": {"tenants": []},
        },
    ],
}
DASHBOARDS = {"enabled": True, "namespace": "monitoring", "annotations": {"grafana_folder": "inference"}}
ONE_NAMESPACE = {
    "crds": {"enabled": False},
    "dashboards": DASHBOARDS,
    "operator": {"watchNamespaces": ["inference"], "networkPolicy": {"enabled": False}},
}
CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "operator-defaults": ("operator", {}, ()),
    "operator-everything": ("operator", EVERYTHING, ()),
    "stack-first-install": ("stack", POLICIES, ()),
    "stack-upgrade": ("stack", POLICIES, ("--api-versions", API)),
    "stack-one-namespace": ("stack", ONE_NAMESPACE, ()),
}


def canonical(text: str) -> str:
    """The objects of a rendering in one order and style, but the CRD: that has a source and a drift check of its own."""
    objects = [each for each in yaml.safe_load_all(text) if each and each["kind"] != "CustomResourceDefinition"]
    return yaml.safe_dump_all(sorted(objects, key=identity), sort_keys=True, width=120)


def identity(manifest: dict[str, Any]) -> tuple[str, str, str]:
    return manifest["kind"], manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]


@pytest.mark.parametrize("name", CASES)
def test_a_rendering_is_the_golden_one(name: str, charts: Charts) -> None:
    chart, values, arguments = CASES[name]
    rendered = canonical(charts.render(getattr(charts, chart), *arguments, values=values))
    golden = HERE / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(rendered)
    assert rendered == golden.read_text(), f"{golden} differs: look at the change, then `make golden`"


def test_every_golden_file_has_a_case() -> None:
    assert {path.stem for path in HERE.glob("*.yaml")} == set(CASES)
