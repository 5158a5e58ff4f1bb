"""Reading TenantPolicies: what the models let in, and what they say about what they do not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from blockwarden_core.identity import Scope
from blockwarden_core.kv_transfer import Connector, render_kv_transfer
from blockwarden_operator.api import Condition, KvShare, KvTransferSpec, TenantPolicy, TenantPolicyStatus
from blockwarden_operator.api.kubernetes import LabelSelector, NetworkPolicyPeer
from blockwarden_operator.errors import InvalidPolicy
from blockwarden_operator.render.names import GROUP, KIND, VERSION

Manifest = dict[str, Any]


@pytest.fixture
def manifest() -> Manifest:
    """What the apiserver returns for a small policy, other people's metadata included."""
    return {
        "apiVersion": "blockwarden.dev/v1alpha1",
        "kind": "TenantPolicy",
        "metadata": {
            "name": "shared-llama",
            "namespace": "inference",
            "uid": "8b9f5a52",
            "generation": 3,
            "resourceVersion": "77",
            "annotations": {"blockwarden.dev/rotate-salt": "after-the-leak"},
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {
            "model": {"name": "llama", "source": {"path": "/models/llama"}},
            "tenants": [{"name": "acme", "kvCache": {"guaranteed": "50%"}}, {"name": "globex", "kvCache": {"guaranteed": 64}}],
        },
    }


def test_a_policy_is_read_with_its_defaults(manifest: Manifest) -> None:
    policy = TenantPolicy.of(manifest)
    assert policy.metadata.generation == 3
    assert policy.spec.engine.replicas == 1
    assert policy.spec.isolation.scope is Scope.TENANT
    assert policy.status == TenantPolicyStatus()
    assert policy.spec.tenants[1].kv_cache.guaranteed == 64


def test_the_kind_is_the_one_that_renderers_name() -> None:
    assert (TenantPolicy.model_fields["api_version"].default, TenantPolicy.model_fields["kind"].default) == (
        f"{GROUP}/{VERSION}",
        KIND,
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda m: m["spec"].update(escape="hatch"), "spec.escape: Extra inputs are not permitted"),
        (lambda m: m["spec"]["model"].pop("name"), "spec.model.name: Field required"),
        (lambda m: m["spec"]["tenants"][0].update(name="No_Label"), "spec.tenants.0.name: String should match pattern"),
        (
            lambda m: m["spec"].update(engine={"template": {"hostNetwork": True}}),
            "spec.engine.template.hostNetwork: Extra inputs",
        ),
        (lambda m: m.update(kind="Pod"), "kind: Input should be 'TenantPolicy'"),
    ],
)
def test_what_the_operator_does_not_know_is_refused_by_the_fields_path(
    manifest: Manifest, change: Callable[[Manifest], Any], sentence: str
) -> None:
    change(manifest)
    with pytest.raises(InvalidPolicy, match=sentence):
        TenantPolicy.of(manifest)


def test_a_refusal_never_shows_a_value(manifest: Manifest) -> None:
    manifest["spec"]["engine"] = {"env": [{"name": "X", "value": ["hunter2"]}]}
    with pytest.raises(InvalidPolicy) as refusal:
        TenantPolicy.of(manifest)
    assert "hunter2" not in str(refusal.value)


def test_a_status_of_a_later_version_is_read_as_far_as_it_is_known(manifest: Manifest) -> None:
    manifest["status"] = {
        "observedGeneration": 3,
        "phase": "Later",
        "rotation": {"phase": "Draining", "observedID": "x", "speed": 9},
    }
    status = TenantPolicy.of(manifest).status
    assert status.rotation is not None
    assert status.manifest() == {
        "observedGeneration": 3,
        "conditions": [],
        "rotation": {"observedID": "x", "phase": "Draining", "forced": False},
        "tenants": [],
    }


def test_a_tenants_scope_is_its_own_or_the_policys(manifest: Manifest) -> None:
    manifest["spec"]["tenants"][0]["scope"] = "Request"
    spec = TenantPolicy.of(manifest).spec
    assert [spec.granted(tenant) for tenant in spec.tenants] == [Scope.REQUEST, Scope.TENANT]


def test_the_limit_is_the_guarantee_unless_it_is_said() -> None:
    assert KvShare(guaranteed="40%").effective_limit == "40%"
    assert KvShare(guaranteed=8, limit=16).effective_limit == 16
    assert KvShare(guaranteed=0, limit=0).effective_limit == 0


def test_manifests_keep_empty_selectors_and_leave_out_what_was_left_out() -> None:
    peer = NetworkPolicyPeer(namespace_selector=LabelSelector())
    assert peer.manifest() == {"namespaceSelector": {}}


def test_reading_back_a_manifest_gives_the_same_policy(manifest: Manifest) -> None:
    policy = TenantPolicy.of(manifest)
    assert TenantPolicy.of(copy.deepcopy(policy.manifest())) == policy


def test_condition_times_are_kubernetes_times() -> None:
    condition = Condition.model_validate(
        {"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-11-01T13:00:00.5+01:00"}
    )
    assert condition.manifest()["lastTransitionTime"] == "2026-11-01T12:00:00Z"


def test_an_external_cache_becomes_the_line_that_engines_accept() -> None:
    spec = KvTransferSpec(connector=Connector.OFFLOADING, cpu_bytes=2**30)
    assert '"cpu_bytes_to_use":1073741824' in render_kv_transfer(spec.resolved())
