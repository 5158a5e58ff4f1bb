"""Addresses of the node and the configuration files of its daemons. Pure: text from arguments.

All addresses exist inside the node's network namespace only, so several nodes use the same ones side by side.
"""

import json
from dataclasses import dataclass
from typing import Any

NODE_ADDRESS = "10.200.0.1"
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
POD_RANGE = "10.244.0.0/16"
POD_SUBNET = "10.244.0.0/24"
PAUSE_IMAGE = "localhost/blockwarden-pause:local"
DNS_IMAGE = "localhost/blockwarden-coredns:local"
CONTAINERD_SOCKET = "unix:///run/containerd/containerd.sock"


@dataclass(frozen=True)
class Places:
    """Paths the configuration files name."""

    certificates: str
    cni_binaries: str
    cni_config: str


def kubelet(places: Places, node: str) -> dict[str, Any]:
    """kubelet's configuration, tuned so that tests need not wait.

    syncFrequency is what bounds the refresh of mounted Secrets and ConfigMaps; their watch makes the new content known at
    once. Garbage collection of images is off: an evicted 6 GB image costs minutes. Disk accounting per pod is off, it
    only costs time here.
    """
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_ADDRESS,
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{places.certificates}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/blockwarden-{node}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "containerRuntimeEndpoint": CONTAINERD_SOCKET,
        "resolvConf": "/dev/null",
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "0%",
            "imagefs.available": "0%",
            "nodefs.inodesFree": "0%",
        },
        "localStorageCapacityIsolation": False,
        "serializeImagePulls": False,
        "syncFrequency": "1s",
        "configMapAndSecretChangeDetectionStrategy": "Watch",
        "nodeStatusUpdateFrequency": "4s",
        "nodeStatusReportFrequency": "30s",
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "crashLoopBackOff": {"maxContainerRestartPeriod": "2s"},
    }


def kube_proxy(kubeconfig: str) -> dict[str, Any]:
    """kube-proxy in nftables mode; it must not touch conntrack sizes, which are the host's."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": POD_RANGE,
        "bindAddress": NODE_ADDRESS,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "clientConnection": {"kubeconfig": kubeconfig, "qps": 100, "burst": 200},
        "conntrack": {"maxPerCore": 0, "min": 0},
        "nftables": {"minSyncPeriod": "100ms"},
    }


def scheduler(kubeconfig: str) -> dict[str, Any]:
    """The scheduler, retrying an unschedulable pod after a second at most."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig, "qps": 200, "burst": 400},
        "leaderElection": {"leaderElect": False},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
    }


def cni() -> dict[str, Any]:
    """Pods on a bridge; kube-router reads the pod subnet from the ranges."""
    return {
        "cniVersion": "1.0.0",
        "name": "blockwarden",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "isDefaultGateway": True,
                "ipMasq": False,
                "hairpinMode": True,
                "ipam": {"type": "host-local", "subnet": POD_SUBNET, "dataDir": "/run/cni"},
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def containerd(places: Places, *, snapshotter: str, cri: bool) -> str:
    """containerd's configuration. Without its CRI part it serves to clear what a crashed run left in the metadata."""
    disabled = [] if cri else ["io.containerd.grpc.v1.cri"]
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = {json.dumps(disabled)}
oom_score = 0
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{places.cni_binaries}"
    conf_dir = "{places.cni_config}"
    max_conf_num = 1
"""


COREFILE = """.:1053 {
    errors
    ready :8181
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 5
    }
    cache 5
    loadbalance
}
"""
