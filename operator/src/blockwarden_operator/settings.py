"""What the operator is told by its environment (`BLOCKWARDEN_*`). Pure: the environment is an argument.

| variable | meaning | default |
| --- | --- | --- |
| BLOCKWARDEN_NAMESPACE | the operator's own namespace; NetworkPolicies admit it to internal ports | required |
| BLOCKWARDEN_POD_LABELS | `key=value,...` that select the operator's own pods | `app.kubernetes.io/name=blockwarden-operator` |
| BLOCKWARDEN_WATCH_NAMESPACES | comma-separated namespaces to serve | all |
| BLOCKWARDEN_ENGINE_IMAGE, BLOCKWARDEN_GATEWAY_IMAGE | images of policies that name none | required |
| BLOCKWARDEN_IMAGE_PREFIXES | comma-separated registries or repositories that a policy's images must come from | any |
| BLOCKWARDEN_DNS_NAMESPACE, BLOCKWARDEN_DNS_LABELS | where the cluster's DNS pods are | `kube-system`, `k8s-app=kube-dns` |
| BLOCKWARDEN_DRAIN_SECONDS | how long old requests may take to finish in a rotation | 600 |
| BLOCKWARDEN_PROBE | `true`: probe engine ports from here (NetworkIsolated); `false` outside the cluster | `true` |
| BLOCKWARDEN_PORT | health and metrics of the operator | 8081 |
| KUBECONFIG | a kubeconfig file instead of the pod's service account | none |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .errors import SettingsError
from .rotation import DRAIN_SECONDS

PREFIX: Final = "BLOCKWARDEN_"


@dataclass(frozen=True, slots=True)
class PodSelection:
    """Pods of one namespace, by labels."""

    namespace: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Settings:
    """See the module's table."""

    operator: PodSelection
    dns: PodSelection
    engine_image: str
    gateway_image: str
    watch_namespaces: tuple[str, ...] = ()
    image_prefixes: tuple[str, ...] = ()
    drain_seconds: int = DRAIN_SECONDS
    probe: bool = True
    port: int = 8081
    kubeconfig: str | None = None


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The settings in an environment.

    Raises:
        SettingsError: a variable is missing or cannot be read; the message names it.
    """
    return Settings(
        operator=PodSelection(
            _required(environment, "NAMESPACE"),
            _labels(environment, "POD_LABELS", "app.kubernetes.io/name=blockwarden-operator"),
        ),
        dns=PodSelection(
            environment.get(PREFIX + "DNS_NAMESPACE", "kube-system"),
            _labels(environment, "DNS_LABELS", "k8s-app=kube-dns"),
        ),
        engine_image=_required(environment, "ENGINE_IMAGE"),
        gateway_image=_required(environment, "GATEWAY_IMAGE"),
        watch_namespaces=_list(environment, "WATCH_NAMESPACES"),
        image_prefixes=_list(environment, "IMAGE_PREFIXES"),
        drain_seconds=_number(environment, "DRAIN_SECONDS", DRAIN_SECONDS),
        probe=_flag(environment, "PROBE", default=True),
        port=_number(environment, "PORT", 8081),
        kubeconfig=environment.get("KUBECONFIG") or None,
    )


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(PREFIX + name, "").strip()
    if not value:
        raise SettingsError(f"{PREFIX}{name} is not set: the chart blockwarden-operator sets it")
    return value


def _list(environment: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in environment.get(PREFIX + name, "").split(",") if part.strip())


def _labels(environment: Mapping[str, str], name: str, default: str) -> dict[str, str]:
    pairs = [part.strip().partition("=") for part in (environment.get(PREFIX + name) or default).split(",")]
    if any(not key or not value for key, _, value in pairs):
        raise SettingsError(f"{PREFIX}{name} is not of the form key=value,key=value: correct it")
    return {key: value for key, _, value in pairs}


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(PREFIX + name) or str(default)
    if not text.isdecimal() or int(text) < 1:
        raise SettingsError(f"{PREFIX}{name} is not a positive whole number: correct it")
    return int(text)


def _flag(environment: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = (environment.get(PREFIX + name) or str(default)).lower()
    if text not in ("true", "false"):
        raise SettingsError(f"{PREFIX}{name} is neither true nor false: correct it")
    return text == "true"
