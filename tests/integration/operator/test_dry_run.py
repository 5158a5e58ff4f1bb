"""Every golden of tests/golden/operator is taken by a real apiserver, by server-side dry run, and nothing of it is pruned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from blockwarden_operator.drift import has_drifted

pytestmark = pytest.mark.integration
GOLDENS = sorted((Path(__file__).parents[2] / "golden/operator").glob("*.yaml"))


def dry_run(cluster: Any, manifest: dict[str, Any]) -> dict[str, Any]:
    options = ("--server-side", "--force-conflicts", "--dry-run=server", "--field-manager=blockwarden-operator", "-o", "json")
    return dict(json.loads(cluster.kubectl("apply", *options, "-f", "-", stdin=json.dumps(manifest))))


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.stem)
def test_a_golden_passes_a_server_side_dry_run(golden: Path, cluster: Any) -> None:
    manifests = [document for document in yaml.safe_load_all(golden.read_text()) if "kind" in document]
    assert len(manifests) > 15
    for manifest in manifests:
        manifest["metadata"]["namespace"] = cluster.namespace
        taken = dry_run(cluster, manifest)
        assert not has_drifted(manifest, taken), f"{manifest['kind']} {manifest['metadata']['name']} came back changed"


def test_there_are_goldens() -> None:
    assert GOLDENS
