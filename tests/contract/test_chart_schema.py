"""What the charts accept, what they refuse and with which words, and that every value is described where a user looks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stack.charts import API, ROOT, Charts
from stack.kubectl import CommandError

pytestmark = pytest.mark.timeout(900)  # the first use on a machine builds helm
OPERATOR, STACK = ROOT / "charts/blockwarden-operator", ROOT / "helm/blockwarden"
POLICY = {"name": "a", "spec": {"tenants": []}}

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a misspelt value": ("operator", {"image": {"tagg": "1"}}, "additional properties 'tagg' not allowed"),
    "a second replica": ("operator", {"replicas": 2}, "additional properties 'replicas' not allowed"),
    "a security context": (
        "operator",
        {"securityContext": {"runAsUser": 0}},
        "additional properties 'securityContext' not allowed",
    ),
    "a tag inside the repository's digest": (
        "operator",
        {"image": {"digest": "latest"}},
        "'/image/digest': 'latest' does not match",
    ),
    "two prefixes in one": ("operator", {"imagePrefixes": ["a,b"]}, "'/imagePrefixes/0': 'a,b' does not match"),
    "a variable that steers the operator": (
        "operator",
        {"extraEnv": [{"name": "BLOCKWARDEN_PROBE", "value": "false"}]},
        "'/extraEnv/0/name'",
    ),
    "a variable that steers its interpreter": (
        "operator",
        {"extraEnv": [{"name": "PYTHONPATH", "value": "/x"}]},
        "'/extraEnv/0/name'",
    ),
    "a variable from a Secret": (
        "operator",
        {"extraEnv": [{"name": "A", "valueFrom": {}}]},
        "additional properties 'valueFrom' not allowed",
    ),
    "a label that selectors use": (
        "operator",
        {"podLabels": {"app.kubernetes.io/name": "x"}},
        "invalid propertyName 'app.kubernetes.io/name'",
    ),
    "no port of the API": ("operator", {"networkPolicy": {"apiServerPorts": []}}, "'/networkPolicy/apiServerPorts': minItems"),
    "a namespace that is no name": ("operator", {"watchNamespaces": ["Team"]}, "'/watchNamespaces/0': 'Team' does not match"),
    "nobody to run as": (
        "operator",
        {"serviceAccount": {"create": False}},
        "serviceAccount.name is empty: name the service account",
    ),
    "a policy without a spec": ("stack", {"tenantPolicies": [{"name": "a"}]}, "'/tenantPolicies/0': missing property 'spec'"),
    "a policy with a status": (
        "stack",
        {"tenantPolicies": [POLICY | {"status": {}}]},
        "additional properties 'status' not allowed",
    ),
    "a policy twice": (
        "stack",
        {"tenantPolicies": [POLICY, POLICY]},
        "tenantPolicies[1] names blockwarden-system/a a second time",
    ),
    "a policy nobody watches": (
        "stack",
        {"tenantPolicies": [POLICY], "operator": {"watchNamespaces": ["team-a"]}},
        "tenantPolicies[0] is in namespace blockwarden-system, which operator.watchNamespaces leaves out: add it there",
    ),
    "a policy without an API or an operator": (
        "stack",
        {"tenantPolicies": [POLICY], "operator": {"enabled": False}},
        "this release does not bring both API and operator: install charts/blockwarden-crds first",
    ),
    "a policy that helm may delete": (
        "stack",
        {"tenantPolicies": [POLICY | {"annotations": {"helm.sh/resource-policy": "delete"}}]},
        "invalid propertyName 'helm.sh/resource-policy'",
    ),
    "a value of a component, misspelt": ("stack", {"operator": {"imagee": {}}}, "additional properties 'imagee' not allowed"),
    "a value of the API's chart, misspelt": ("stack", {"crds": {"kepp": True}}, "additional properties 'kepp' not allowed"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_wrong_value_is_refused_by_name(why: str, charts: Charts) -> None:
    chart, values, message = REFUSED[why]
    with pytest.raises(CommandError) as refused:
        charts.render(getattr(charts, chart), values=values)
    assert message in str(refused.value)


def test_the_values_as_shipped_are_accepted(charts: Charts) -> None:
    assert "kind: Deployment" in charts.render(charts.stack)


@pytest.mark.parametrize("chart", ["operator", "stack"])
def test_helm_finds_nothing_to_complain_of(chart: str, charts: Charts) -> None:
    said = charts.run("lint", "--strict", str(getattr(charts, chart)))
    assert "[WARNING]" not in said and "[ERROR]" not in said and "0 chart(s) failed" in said


def notes(charts: Charts, *arguments: str, values: dict[str, Any]) -> str:
    """NOTES.txt of the stack, as a user would read it."""
    words = ("install", "blockwarden", str(charts.stack), "--namespace", "inference", "--dry-run=client", "--hide-notes=false")
    return charts.run(*words, *arguments, values=values).rpartition("NOTES:")[2]


def test_the_notes_name_the_next_command(charts: Charts) -> None:
    text = notes(charts, values={})
    assert "kubectl apply -f tenantpolicy.yaml" in text
    assert 'blockwarden.dev/rotate-salt="$(date +%s)"' in text
    assert (
        "rollout status deployment --selector app.kubernetes.io/component=operator,app.kubernetes.io/instance=blockwarden" in text
    )


def test_the_notes_name_the_policies_of_the_release(charts: Charts) -> None:
    text = notes(charts, values={"tenantPolicies": [POLICY | {"namespace": "team-a"}]})
    assert "kubectl -n team-a wait --for=condition=Ready --timeout=15m tenantpolicy/a" in text
    assert "kubectl apply" not in text


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of a values file that hold something other than a map with entries."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    else:
        yield path


def values_of(chart: Path) -> list[tuple[str, ...]]:
    return list(leaves(yaml.safe_load((chart / "values.yaml").read_text())))


@pytest.mark.parametrize(("chart", "page"), [(OPERATOR, OPERATOR / "README.md"), (STACK, ROOT / "docs/installation.md")])
def test_every_value_has_its_row(chart: Path, page: Path) -> None:
    rows = {line.split("`")[1] for line in page.read_text().splitlines() if line.startswith("| `")}
    missing = {".".join(path) for path in values_of(chart)} - rows
    assert missing - {"dashboards.labels.grafana_dashboard"} == set()


def test_every_row_of_the_operators_table_is_a_value() -> None:
    rows = {line.split("`")[1] for line in (OPERATOR / "README.md").read_text().splitlines() if line.startswith("| `")}
    assert rows == {".".join(path) for path in values_of(OPERATOR)}


@pytest.mark.parametrize("chart", [OPERATOR, STACK])
def test_the_schema_describes_every_value(chart: Path) -> None:
    schema = json.loads((chart / "values.schema.json").read_text())
    undescribed = [".".join(path) for path in values_of(chart) if not described(schema, schema, path)]
    assert undescribed == []


def described(root: dict[str, Any], node: dict[str, Any], path: tuple[str, ...]) -> bool:
    """Whether the schema gives the value at `path`, or the free map that holds it, a description."""
    if "$ref" in node:
        node = root["$defs"][node["$ref"].rpartition("/")[2]] | {key: node[key] for key in node if key != "$ref"}
    if not path or "properties" not in node:
        return bool(node.get("description") or "additionalProperties" in node)
    return path[0] in node["properties"] and described(root, node["properties"][path[0]], path[1:])


def policies(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each and each["kind"] == "TenantPolicy"]


def test_helm_never_deletes_a_policy_and_hooks_only_where_the_api_is_missing(charts: Charts) -> None:
    values = {"tenantPolicies": [POLICY]}
    (hook,) = policies(charts.render(charts.stack, values=values))
    (owned,) = policies(charts.render(charts.stack, "--api-versions", API, values=values))
    assert hook["metadata"]["annotations"] == {
        "helm.sh/resource-policy": "keep",
        "helm.sh/hook": "post-install",
        "helm.sh/hook-delete-policy": "hook-failed",
        "meta.helm.sh/release-name": "blockwarden",
        "meta.helm.sh/release-namespace": "blockwarden-system",
    }
    assert owned["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert hook["spec"] == owned["spec"] == POLICY["spec"]
