"""The chart's roles and the operator's own list of what it does are the same, and the roles reach whom they should."""

from typing import Any

import pytest
import yaml

from blockwarden_operator.rbac import RULES
from blockwarden_operator.settings import read_settings
from stack.charts import Charts

pytestmark = pytest.mark.timeout(900)  # the first use on a machine builds helm
Permission = tuple[str, str, str]
NAME, NAMESPACE = "blockwarden-operator", "blockwarden-system"


def needed() -> set[Permission]:
    """(API group, resource, verb) of everything that the code does."""
    return {(rule.group, resource, verb) for rule in RULES for resource in rule.resources for verb in rule.verbs}


def granted(role: dict[str, Any]) -> set[Permission]:
    """The same of a Role or ClusterRole; fails on rules that reach further than resources by name of group."""
    permissions: set[Permission] = set()
    for rule in role["rules"]:
        assert set(rule) == {"apiGroups", "resources", "verbs"}
        permissions |= {(g, r, v) for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}
    return permissions


def objects(charts: Charts, **values: Any) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(charts.render(charts.operator, values=values)) if each]


def named(manifests: list[dict[str, Any]], kind: str, name: str = NAME) -> list[dict[str, Any]]:
    return [each for each in manifests if (each["kind"], each["metadata"]["name"]) == (kind, name)]


def test_the_cluster_role_is_what_the_code_needs(charts: Charts) -> None:
    (role,) = named(objects(charts), "ClusterRole")
    assert granted(role) == needed()


def test_a_difference_would_be_seen() -> None:
    """The broken twin: one verb more, and one less."""
    rules = [{"apiGroups": [rule.group], "resources": list(rule.resources), "verbs": list(rule.verbs)} for rule in RULES]
    assert granted({"rules": rules}) == needed()
    assert granted({"rules": [*rules, {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}]}) != needed()
    assert granted({"rules": rules[1:]}) != needed()


def test_nothing_is_granted_by_wildcard_and_no_power_over_roles_or_pods() -> None:
    for group, resource, verb in needed():
        assert "*" not in (group, resource, verb)
        assert group != "rbac.authorization.k8s.io" and verb not in ("escalate", "bind", "impersonate")
        assert (resource, verb) != ("pods", "create") and resource not in (
            "pods/exec",
            "pods/ephemeralcontainers",
            "serviceaccounts/token",
        )


def test_with_namespaces_there_are_roles_in_them_and_nothing_cluster_wide(charts: Charts) -> None:
    manifests = objects(charts, watchNamespaces=["team-a", "team-b"], rbac={"aggregateUserRoles": False})
    assert [each["kind"] for each in manifests if each["kind"].startswith("Cluster")] == []
    roles = named(manifests, "Role")
    assert [role["metadata"]["namespace"] for role in roles] == ["team-a", "team-b"]
    assert all(granted(role) == needed() for role in roles)
    assert [each["metadata"]["namespace"] for each in named(manifests, "RoleBinding")] == ["team-a", "team-b"]


@pytest.mark.parametrize(("namespaces", "kind"), [([], "ClusterRoleBinding"), (["team-a"], "RoleBinding")])
def test_bindings_name_the_pods_own_service_account(namespaces: list[str], kind: str, charts: Charts) -> None:
    manifests = objects(charts, watchNamespaces=namespaces, serviceAccount={"name": "warden"})
    (binding,), (deployment,) = named(manifests, kind), named(manifests, "Deployment")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "warden", "namespace": NAMESPACE}]
    assert binding["roleRef"]["kind"] == kind.removesuffix("Binding")
    assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == "warden"
    assert named(manifests, "ServiceAccount", "warden")


def test_without_rbac_there_are_no_roles_of_the_operator(charts: Charts) -> None:
    manifests = objects(charts, rbac={"create": False, "aggregateUserRoles": False})
    assert [each["kind"] for each in manifests if "Role" in each["kind"]] == []


def test_users_may_read_and_write_policies_and_nothing_else(charts: Charts) -> None:
    manifests = objects(charts)
    ((view,), (edit,)) = named(manifests, "ClusterRole", f"{NAME}-view"), named(manifests, "ClusterRole", f"{NAME}-edit")
    assert {verb for _, _, verb in granted(view)} == {"get", "list", "watch"}
    assert {(group, resource) for group, resource, _ in granted(edit)} == {("blockwarden.dev", "tenantpolicies")}
    assert "rbac.authorization.k8s.io/aggregate-to-view" not in edit["metadata"]["labels"]


def test_the_operator_reads_the_environment_that_the_chart_sets(charts: Charts) -> None:
    values = {
        "watchNamespaces": ["team-a", "team-b"],
        "dns": {"namespace": "dns", "labels": {"app": "coredns"}},
        "drainSeconds": 60,
    }
    (deployment,) = named(objects(charts, **values), "Deployment")
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    settings = read_settings({each["name"]: each.get("value", NAMESPACE) for each in container["env"]})
    assert settings.operator.namespace == NAMESPACE
    assert settings.operator.labels.items() <= pod["metadata"]["labels"].items()
    assert settings.operator.labels == deployment["spec"]["selector"]["matchLabels"]
    assert (settings.dns.namespace, settings.dns.labels) == ("dns", {"app": "coredns"})
    assert settings.watch_namespaces == ("team-a", "team-b")
    assert (settings.gateway_image, settings.engine_image) == ("blockwarden/gateway:0.1.0", "blockwarden/engine:0.1.0")
    assert (settings.drain_seconds, settings.probe, settings.port) == (60, True, container["ports"][0]["containerPort"])
