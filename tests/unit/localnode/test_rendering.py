"""Configuration files and command lines: what a later edit must not lose, each once measured as a trap."""

import json
import tomllib
from pathlib import Path

from localnode import addons, certificates, controlplane, settings
from localnode.certificates import Authority
from localnode.controlplane import Endpoint
from localnode.settings import Places

PLACES = Places("/pki", "/cni/bin", "/cni/net")
AUTHORITY = Authority(Path("/pki"))


def test_kubelet_tolerates_old_cgroups_and_swap_and_refreshes_fast() -> None:
    found = settings.kubelet(PLACES, "bw")
    assert found["failCgroupV1"] is False
    assert found["failSwapOn"] is False
    assert found["cgroupRoot"] == "/blockwarden-bw"
    assert found["syncFrequency"] == "1s"
    assert found["imageGCHighThresholdPercent"] == 100


def test_kubelet_asks_for_authentication() -> None:
    found = settings.kubelet(PLACES, "bw")
    assert found["authentication"]["anonymous"] == {"enabled": False}
    assert found["authorization"] == {"mode": "Webhook"}


def test_kube_proxy_leaves_the_hosts_conntrack_alone() -> None:
    assert settings.kube_proxy("/k")["conntrack"] == {"maxPerCore": 0, "min": 0}


def test_containerd_works_without_the_right_to_adjust_oom_scores() -> None:
    found = tomllib.loads(settings.containerd(PLACES, snapshotter="native", cri=True))
    cri = found["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["restrict_oom_score_adj"] is True
    assert cri["containerd"]["snapshotter"] == "native"
    assert cri["cni"]["conf_dir"] == "/cni/net"
    assert found["disabled_plugins"] == []
    bare = tomllib.loads(settings.containerd(PLACES, snapshotter="overlayfs", cri=False))
    assert bare["disabled_plugins"] == ["io.containerd.grpc.v1.cri"]


def test_the_apiserver_reaches_kubelets_by_address() -> None:
    argv = controlplane.apiserver("/bin/kube-apiserver", AUTHORITY, Endpoint()).argv
    assert "--kubelet-preferred-address-types=InternalIP" in argv
    assert "--authorization-mode=Node,RBAC" in argv
    assert "--endpoint-reconciler-type=lease" in argv


def test_alone_on_loopback_nothing_is_advertised() -> None:
    argv = controlplane.apiserver("/bin/kube-apiserver", AUTHORITY, Endpoint("127.0.0.1", 1, 2, 3)).argv
    assert "--endpoint-reconciler-type=none" in argv
    assert "--bind-address=127.0.0.1" in argv


def test_etcd_listens_on_loopback_only() -> None:
    urls = [flag for flag in controlplane.etcd("/bin/etcd", "/d", Endpoint()).argv if "urls" in flag]
    assert len(urls) == 4
    assert all("//127.0.0.1:" in flag for flag in urls)


def test_dns_carries_the_labels_policies_select_by() -> None:
    items = {item["kind"]: item for item in addons.manifests()["items"]}
    deployment = items["Deployment"]
    assert deployment["metadata"]["namespace"] == "kube-system"
    assert deployment["spec"]["template"]["metadata"]["labels"] == {"k8s-app": "kube-dns"}
    assert items["Service"]["spec"]["clusterIP"] == settings.DNS_SERVICE


def test_the_firewall_may_read_and_nothing_else() -> None:
    roles = [item for item in addons.manifests()["items"] if item["kind"] == "ClusterRole"]
    verbs = {verb for role in roles for rule in role["rules"] for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch"}


def test_a_kubeconfig_is_self_contained() -> None:
    found = json.loads(certificates.render_kubeconfig("https://127.0.0.1:1", "ca", "crt", "key"))
    assert found["clusters"][0]["cluster"] == {"server": "https://127.0.0.1:1", "certificate-authority-data": "ca"}
    assert found["users"][0]["user"] == {"client-certificate-data": "crt", "client-key-data": "key"}
    assert found["current-context"] == found["contexts"][0]["name"]


def test_subjects_are_what_the_node_authorizer_knows() -> None:
    assert certificates.node_subject("bw").openssl == "/O=system:nodes/CN=system:node:bw"
