"""The control: a stock vLLM, without gateway and without plugin, in a pod of its own. It shows what isolation takes away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stack.client import Client
from stack.forward import forwarded
from stack.images import MODEL
from stack.kubectl import Cluster, wait_for

NAMESPACE = "blockwarden-control"


def stock_engine(image: str) -> dict[str, Any]:
    """The pod: the engine's image, started as anybody would start vLLM."""
    arguments = ["-m", "vllm.entrypoints.openai.api_server", "--model", f"/models/{MODEL}", "--served-model-name", MODEL]
    arguments += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "2048", "--block-size", "32"]
    arguments += ["--enable-prompt-tokens-details", "--port", "8000"]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "HOME": "/tmp", "VLLM_PLUGINS": ""}
    container = {
        "name": "vllm",
        "image": image,
        "command": ["python3"],
        "args": arguments,
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 2},
    }
    volumes = [{"name": "tmp", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stock-vllm", "namespace": NAMESPACE},
        "spec": {"containers": [container], "volumes": volumes, "automountServiceAccountToken": False},
    }


@contextmanager
def stock_vllm(cluster: Cluster, image: str, *, timeout: float = 300) -> Iterator[Client]:
    """A client of a stock engine, which is gone after the block."""
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    try:
        cluster.apply(stock_engine(image))
        cluster.run(
            "-n", NAMESPACE, "wait", "pod/stock-vllm", "--for=condition=Ready", f"--timeout={timeout:.0f}s", timeout=timeout + 10
        )
        with forwarded(cluster, NAMESPACE, "pod/stock-vllm", 8000) as url:
            yield Client(url, timeout=300)
    finally:
        cluster.run("delete", "namespace", NAMESPACE, "--wait=false")
        wait_for("the end of the control pod", lambda: not _pods(cluster) or None, timeout=120)


def _pods(cluster: Cluster) -> list[Any]:
    return list(cluster.get("-n", NAMESPACE, "pods")["items"])
