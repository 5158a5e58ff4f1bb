"""Drift: defaults are not drift, lost values are, and what strangers own is found by its owner."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from blockwarden_operator.drift import SHAPE_ANNOTATION, adopt_foreign_fields, has_drifted, with_shape

Manifest = dict[str, Any]


def desired() -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "demo", "labels": {"a": "b"}},
        "spec": {
            "replicas": 1,
            "paused": False,
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "engine",
                            "args": ["--x"],
                            "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi", "gpu": 2}},
                        }
                    ]
                }
            },
        },
    }


def as_stored() -> Manifest:
    """What an apiserver makes of it: defaults added, quantities rewritten, false left out, metadata of its own."""
    live = with_shape(copy.deepcopy(desired()))
    del live["spec"]["paused"]
    live["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    live["spec"]["revisionHistoryLimit"] = 10
    container = live["spec"]["template"]["spec"]["containers"][0]
    container["terminationMessagePath"] = "/dev/termination-log"
    container["resources"] = {"limits": {"cpu": "1", "memory": "1Gi", "gpu": "2"}}
    return live


def test_what_the_apiserver_makes_of_it_is_not_drift() -> None:
    assert not has_drifted(with_shape(desired()), as_stored())


@pytest.mark.parametrize(
    "edit",
    [
        lambda live: live["spec"].update(replicas=2),
        lambda live: live["spec"].update(paused=True),
        lambda live: live["metadata"]["labels"].update(a="c"),
        lambda live: live["spec"]["template"]["spec"]["containers"][0].update(args=[]),
        lambda live: live["spec"]["template"]["spec"]["containers"][0].update(args=["--x", "--y"]),
        lambda live: live["spec"]["template"]["spec"]["containers"].append({"name": "spy"}),
        lambda live: live["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"].update(cpu="1001m"),
        lambda live: live["metadata"]["annotations"].pop(SHAPE_ANNOTATION),
    ],
)
def test_a_changed_value_is_drift(edit: Any) -> None:
    live = as_stored()
    edit(live)
    assert has_drifted(with_shape(desired()), live)


def test_a_field_that_is_no_longer_wanted_is_drift() -> None:
    less = desired()
    del less["spec"]["replicas"]
    assert has_drifted(with_shape(less), as_stored())


def test_the_shape_knows_paths_and_no_values() -> None:
    one, two = desired(), desired()
    two["spec"]["replicas"] = 5
    two["spec"]["template"]["spec"]["containers"][0]["args"] = ["--secret"]
    assert with_shape(one)["metadata"]["annotations"] == with_shape(two)["metadata"]["annotations"]


def entry(manager: str, fields: Manifest, **more: str) -> Manifest:
    return {"manager": manager, "operation": "Update", "apiVersion": "apps/v1", "fieldsV1": fields, **more}


OURS = {
    "manager": "blockwarden-operator",
    "operation": "Apply",
    "apiVersion": "apps/v1",
    "fieldsV1": {"f:spec": {"f:replicas": {}}},
}


RESTARTED = {".": {}, "f:kubectl.kubernetes.io/restartedAt": {}}
"""As the apiserver records `kubectl rollout restart`: the map of annotations, and the one in it."""


def owned_by(*entries: Manifest) -> Manifest:
    return {"metadata": {"managedFields": [OURS, *entries]}}


def test_a_strangers_field_is_taken_over_and_its_annotations_stay() -> None:
    stranger = entry(
        "kubectl-edit",
        {
            "f:metadata": {"f:annotations": {"f:note": {}}},
            "f:spec": {"f:template": {"f:spec": {"f:hostNetwork": {}}, "f:metadata": {"f:annotations": RESTARTED}}},
        },
    )
    adopted = adopt_foreign_fields(owned_by(stranger))
    assert adopted is not None
    assert adopted[0]["fieldsV1"] == {"f:spec": {"f:replicas": {}, "f:template": {"f:spec": {"f:hostNetwork": {}}}}}
    assert adopted[1]["fieldsV1"] == {
        "f:metadata": {"f:annotations": {"f:note": {}}},
        "f:spec": {"f:template": {"f:metadata": {"f:annotations": {"f:kubectl.kubernetes.io/restartedAt": {}}}}},
    }


@pytest.mark.parametrize(
    "other",
    [
        entry("kube-controller-manager", {"f:status": {"f:replicas": {}}, "f:metadata": {}}, subresource="status"),
        entry("kubectl", {"f:spec": {"f:replicas": {}}}, subresource="scale"),
        entry("kubectl-annotate", {"f:metadata": {"f:annotations": {"f:x": {}}}}),
        entry("kubectl-rollout", {"f:spec": {"f:template": {"f:metadata": {"f:annotations": RESTARTED}}}}),
        entry("blockwarden-operator", {"f:spec": {"f:template": {"f:spec": {"f:webhook": {}}}}}),
    ],
)
def test_what_is_others_business_stays_theirs(other: Manifest) -> None:
    assert adopt_foreign_fields(owned_by(other)) is None


@pytest.mark.parametrize("annotation", ["k8s.v1.cni.cncf.io/networks", "sidecar.istio.io/inject", "note"])
def test_any_other_annotation_of_pods_is_taken_over(annotation: str) -> None:
    fields = {"f:spec": {"f:template": {"f:metadata": {"f:annotations": {**RESTARTED, f"f:{annotation}": {}}}}}}
    adopted = adopt_foreign_fields(owned_by(entry("kubectl-edit", fields)))
    assert adopted is not None
    taken = adopted[0]["fieldsV1"]["f:spec"]["f:template"]["f:metadata"]["f:annotations"]
    assert taken == {".": {}, f"f:{annotation}": {}}
    assert adopted[1]["fieldsV1"] == {
        "f:spec": {"f:template": {"f:metadata": {"f:annotations": {"f:kubectl.kubernetes.io/restartedAt": {}}}}}
    }


def test_an_object_that_was_never_applied_has_nothing_to_adopt() -> None:
    assert adopt_foreign_fields({"metadata": {"managedFields": [entry("kubectl", {"f:data": {}})]}}) is None
