"""What a bare cluster lacks: DNS, and the rights of the daemons that are not part of Kubernetes. Pure: dictionaries.

CoreDNS is an ordinary pod with the usual labels, so that NetworkPolicies which let pods ask DNS mean the same here as
on any other cluster.
"""

from typing import Any

from localnode.settings import COREFILE, DNS_IMAGE, DNS_SERVICE

Manifest = dict[str, Any]
LABELS = {"k8s-app": "kube-dns"}
RBAC = "rbac.authorization.k8s.io"


def role(name: str, subject: Manifest, resources: dict[str, list[str]]) -> list[Manifest]:
    """A cluster role that may read the resources (by API group), bound to one subject."""
    rules = [{"apiGroups": [group], "resources": kinds, "verbs": ["get", "list", "watch"]} for group, kinds in resources.items()]
    metadata = {"name": f"blockwarden:{name}"}
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": metadata["name"]}
    return [
        {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "roleRef": reference,
            "subjects": [subject],
        },
    ]


def manifests() -> Manifest:
    """Everything the node applies after the apiserver is up, as one List."""
    slices = {"discovery.k8s.io": ["endpointslices"]}
    account = {"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}
    router = {"kind": "User", "apiGroup": RBAC, "name": "kube-router"}
    policies = {"networking.k8s.io": ["networkpolicies"]}
    items = [
        *role("kube-router", router, {"": ["namespaces", "pods", "services", "nodes", "endpoints"], **policies, **slices}),
        *role("coredns", account, {"": ["endpoints", "services", "pods", "namespaces"], **slices}),
        {"apiVersion": "v1", **_named("ServiceAccount", "coredns")},
        {"apiVersion": "v1", **_named("ConfigMap", "coredns"), "data": {"Corefile": COREFILE}},
        {"apiVersion": "v1", **_named("Service", "kube-dns"), "spec": _service()},
        {"apiVersion": "apps/v1", **_named("Deployment", "coredns"), "spec": _deployment()},
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _named(kind: str, name: str) -> Manifest:
    """Kind and metadata of an object in kube-system."""
    return {"kind": kind, "metadata": {"name": name, "namespace": "kube-system", "labels": LABELS}}


def _service() -> Manifest:
    """DNS on its usual port; the pod listens higher since it has no capabilities."""
    ports = [{"name": protocol.lower(), "port": 53, "targetPort": 1053, "protocol": protocol} for protocol in ("UDP", "TCP")]
    return {"clusterIP": DNS_SERVICE, "selector": LABELS, "ports": ports}


def _deployment() -> Manifest:
    """One CoreDNS."""
    container = {
        "name": "coredns",
        "image": DNS_IMAGE,
        "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsUser": 65532,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod = {
        "serviceAccountName": "coredns",
        "priorityClassName": "system-cluster-critical",
        "dnsPolicy": "Default",
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
    }
    return {"selector": {"matchLabels": LABELS}, "template": {"metadata": {"labels": LABELS}, "spec": pod}}
