"""What a real kube-apiserver makes of a TenantPolicy that it takes: defaults, pruning, merging, status, printing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from blockwarden_operator.api import TenantPolicy, TenantPolicySpec, TenantPolicyStatus

pytestmark = pytest.mark.integration
Manifest = dict[str, Any]
EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("tenantpolicy-*.yaml"))
STATUS: Manifest = {
    "observedGeneration": 1,
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "observedGeneration": 1,
            "lastTransitionTime": "2026-11-01T12:00:00Z",
            "reason": "Ready",
            "message": "",
        }
    ],
    "endpoint": "http://shared-llama-gateway.inference.svc:8080/v1",
    "replicas": {"engine": {"desired": 2, "ready": 1}, "gateway": {"desired": 1, "ready": 1}},
    "tenantCount": 2,
    "rotation": {
        "observedID": "after-the-leak",
        "tenantIDs": {"acme": "x"},
        "phase": "Draining",
        "generation": 4,
        "forced": True,
        "rotatedAt": "2026-11-01T12:00:00Z",
        "phaseSince": "2026-11-01T12:00:01Z",
        "deadline": "2026-11-01T12:10:00Z",
        "unknownTenants": ["nobody"],
        "waitingFor": ["shared-llama-gateway-0"],
    },
    "tenants": [
        {"name": "acme", "apiKeySecret": "shared-llama-key-acme", "saltGeneration": 4},
        {"name": "shared", "saltGeneration": 1},
    ],
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_taken_as_they_stand(server: Any, path: Path) -> None:
    manifest = yaml.safe_load(path.read_text())
    manifest["metadata"].pop("namespace", None)
    created = server.create(manifest, dry_run=True, strict=True)
    assert TenantPolicy.of(created).metadata.name == manifest["metadata"]["name"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_apiservers_defaults_are_the_operators(server: Any, path: Path) -> None:
    manifest = yaml.safe_load(path.read_text())
    manifest["metadata"].pop("namespace", None)
    stored = server.create(manifest, dry_run=True)["spec"]
    assert TenantPolicySpec.model_validate(stored) == TenantPolicySpec.model_validate(manifest["spec"])
    assert stored["isolation"] == {"scope": "Tenant", "exposeCachedTokens": False, "deregistrationGraceSeconds": 30}
    assert stored["engine"]["kvEvents"]["enabled"] is (path.stem == "tenantpolicy-full")


def test_what_the_schema_does_not_know_is_pruned_or_refused(cluster: Any, refused: Any, minimal: Manifest) -> None:
    minimal["spec"]["engine"]["template"] = {"hostNetwork": True, "containers": [{"name": "spy"}], "labels": {"team": "a"}}
    minimal["spec"]["gateway"] = {"template": {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}}
    with pytest.raises(refused, match=r'unknown field "spec\.engine\.template\.hostNetwork"'):
        cluster.create(minimal, dry_run=True, strict=True)
    stored = cluster.create(minimal)["spec"]
    assert (stored["engine"]["template"], stored["gateway"]["template"]) == ({"labels": {"team": "a"}}, {})


def test_every_field_of_the_status_is_kept(cluster: Any, minimal: Manifest) -> None:
    created = cluster.create(minimal)
    written = cluster.replace_status({**created, "status": STATUS})
    assert written["status"] == STATUS
    assert TenantPolicyStatus.model_validate(written["status"]).manifest() == STATUS


def test_the_status_here_has_every_field_that_the_models_have() -> None:
    """Otherwise the test above would not see a field that the apiserver prunes."""

    def missing(model: Any, value: Any, path: str) -> list[str]:
        found = [f"{path}.{name}" for name in model.model_json_schema(by_alias=True)["properties"] if name not in value]
        return found

    status = TenantPolicyStatus.model_validate(STATUS)
    parts = [(status, STATUS), (status.rotation, STATUS["rotation"]), (status.tenants[0], STATUS["tenants"][0])]
    parts += [(status.conditions[0], STATUS["conditions"][0]), (status.replicas, STATUS["replicas"])]
    assert [path for part, value in parts for path in missing(type(part), value, type(part).__name__)] == []


def test_status_and_spec_are_written_apart(cluster: Any, minimal: Manifest) -> None:
    created = cluster.create({**minimal, "status": STATUS})
    assert "status" not in created
    moved = {**created, "spec": {**created["spec"], "isolation": {"scope": "Request"}}, "status": {**STATUS, "phase": "Invented"}}
    written = cluster.replace_status(moved)
    assert (written["spec"]["isolation"]["scope"], written["metadata"]["generation"]) == ("Tenant", 1)
    assert "phase" not in written["status"]


@pytest.mark.parametrize(
    "broken",
    [{"rotation": {"phase": "Nowhere"}}, {"conditions": [{"type": "Ready"}]}, {"tenants": [{"name": "a"}, {"name": "a"}]}],
)
def test_a_malformed_status_is_refused(cluster: Any, refused: Any, minimal: Manifest, broken: Manifest) -> None:
    created = cluster.create(minimal)
    with pytest.raises(refused, match=r"status\."):
        cluster.replace_status({**created, "status": broken})


def test_kubectl_get_shows_what_matters(cluster: Any, minimal: Manifest) -> None:
    created = cluster.create(minimal)
    cluster.replace_status({**created, "status": STATUS})
    header, row = cluster.kubectl("get", "tpol").splitlines()
    assert header.split() == ["NAME", "READY", "REASON", "ENDPOINT", "TENANTS", "SALT", "AGE"]
    assert row.split()[:-1] == ["shared-llama", "True", "Ready", STATUS["endpoint"], "2", "4"]
    assert "shared-llama" in cluster.kubectl("get", "blockwarden")
    assert "tenantpolicy.blockwarden.dev/shared-llama" in cluster.kubectl("get", "all", "-o", "name")


def test_two_owners_of_two_tenants_do_not_undo_each_other(cluster: Any, minimal: Manifest) -> None:
    def apply(manager: str, tenant: str) -> None:
        part = {**minimal, "spec": {**minimal["spec"], "tenants": [{"name": tenant, "kvCache": {"guaranteed": "10%"}}]}}
        cluster.kubectl("apply", "--server-side", "--field-manager", manager, "-f", "-", stdin=json.dumps(part))

    apply("team-a", "acme")
    apply("team-b", "globex")
    apply("team-a", "acme")
    assert [tenant["name"] for tenant in cluster.get("shared-llama")["spec"]["tenants"]] == ["acme", "globex"]


def test_a_tenant_twice_is_refused(cluster: Any, refused: Any, minimal: Manifest) -> None:
    minimal["spec"]["tenants"][1]["name"] = "acme"
    with pytest.raises(refused, match="Duplicate value"):
        cluster.create(minimal, dry_run=True)


def test_yaml_reads_a_bare_off_as_a_boolean_so_it_must_be_quoted(cluster: Any, minimal: Manifest) -> None:
    minimal["spec"]["engine"]["kvCache"] = {"scrubVerify": "Off"}
    text = yaml.safe_dump(minimal)
    assert "scrubVerify: 'Off'" in text
    cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text)
    with pytest.raises(AssertionError, match="must be of type string"):
        cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text.replace("'Off'", "Off"))


def test_kubectl_explain_says_what_a_field_does(server: Any) -> None:
    assert "What is the tenant's at all times" in server.kubectl("explain", "tenantpolicy.spec.tenants.kvCache.guaranteed")
