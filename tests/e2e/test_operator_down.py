"""Issue point 8: the operator is not on the request path, and coming back it finds nothing to write."""

from __future__ import annotations

import json
import time

import pytest

from stack.deploy import SYSTEM
from stack.kubectl import wait_for
from stack.steady import steady_client

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def operator_pods(product) -> list[str]:
    return [pod["metadata"]["name"] for pod in product.cluster.get("-n", SYSTEM, "pods")["items"]]


def settled(product) -> dict[str, str]:
    """The objects once they have stopped changing for ten seconds."""
    last, since = product.owned(), time.monotonic()
    deadline = since + 120
    while time.monotonic() - since < 10:
        assert time.monotonic() < deadline, "objects keep changing"
        time.sleep(1)
        if (now := product.owned()) != last:
            last, since = now, time.monotonic()
    return last


def test_killing_and_restarting_the_operator_changes_nothing(product) -> None:
    before = settled(product)
    [pod] = operator_pods(product)
    with steady_client(product.client("acme"), "smollm2-135m-instruct") as record:
        product.cluster.run("-n", SYSTEM, "delete", "pod", pod, "--grace-period=0", "--force")
        [deployment] = product.cluster.get("-n", SYSTEM, "deployments")["items"]
        name = f"deployment/{deployment['metadata']['name']}"
        wait_for("another operator", lambda: operator_pods(product) not in ([], [pod]) or None, timeout=60)
        product.cluster.run("-n", SYSTEM, "rollout", "status", name, "--timeout=120s")
        time.sleep(20)  # two rounds of everything that the operator does by the clock
    assert record.answered > 20
    assert record.failures == []
    assert product.owned() == before


def test_the_operator_runs_with_least_privilege(product) -> None:
    [pod] = product.cluster.get("-n", SYSTEM, "pods")["items"]
    [container] = pod["spec"]["containers"]
    security = pod["spec"].get("securityContext", {}) | container["securityContext"]
    assert security["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    account = f"system:serviceaccount:{SYSTEM}:{pod['spec']['serviceAccountName']}"
    for verb, resource in (("create", "pods"), ("create", "clusterroles"), ("get", "nodes"), ("create", "pods/exec")):
        assert not may(product, account, verb, resource), f"{account} may {verb} {resource}"
    assert may(product, account, "patch", "deployments.apps")


def may(product, account: str, verb: str, resource: str) -> bool:
    """Whether the API server would let the account do this in the policy's namespace."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": account, "groups": ["system:serviceaccounts"], "resourceAttributes": _attributes(verb, resource)},
    }
    made = json.loads(product.cluster.run("create", "-f", "-", "-o", "json", stdin=json.dumps(review)))
    return made["status"]["allowed"] is True


def _attributes(verb: str, resource: str) -> dict[str, str]:
    name, _, subresource = resource.partition("/")
    plain, _, group = name.partition(".")
    return {"verb": verb, "resource": plain, "group": group, "subresource": subresource, "namespace": "blockwarden-demo"}
