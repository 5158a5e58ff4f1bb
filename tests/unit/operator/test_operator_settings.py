"""Settings are read from an environment, or refused by the variable's name."""

from __future__ import annotations

import pytest

from blockwarden_operator.errors import SettingsError
from blockwarden_operator.settings import PodSelection, read_settings

LEAST = {"BLOCKWARDEN_NAMESPACE": "ops", "BLOCKWARDEN_ENGINE_IMAGE": "e:1", "BLOCKWARDEN_GATEWAY_IMAGE": "g:1"}


def test_the_least_that_must_be_set() -> None:
    settings = read_settings(LEAST)
    assert settings.operator == PodSelection("ops", {"app.kubernetes.io/name": "blockwarden-operator"})
    assert settings.dns == PodSelection("kube-system", {"k8s-app": "kube-dns"})
    assert (settings.watch_namespaces, settings.probe, settings.port, settings.kubeconfig) == ((), True, 8081, None)


def test_all_of_them() -> None:
    settings = read_settings(
        LEAST
        | {
            "BLOCKWARDEN_POD_LABELS": "a=b, c=d",
            "BLOCKWARDEN_WATCH_NAMESPACES": "x, y,",
            "BLOCKWARDEN_IMAGE_PREFIXES": "registry.example/team",
            "BLOCKWARDEN_DNS_NAMESPACE": "dns",
            "BLOCKWARDEN_DNS_LABELS": "k=v",
            "BLOCKWARDEN_DRAIN_SECONDS": "30",
            "BLOCKWARDEN_PROBE": "false",
            "BLOCKWARDEN_PORT": "9",
            "KUBECONFIG": "/k",
        }
    )
    assert settings.operator.labels == {"a": "b", "c": "d"}
    assert settings.watch_namespaces == ("x", "y")
    assert settings.image_prefixes == ("registry.example/team",)
    assert settings.dns == PodSelection("dns", {"k": "v"})
    assert (settings.drain_seconds, settings.probe, settings.port, settings.kubeconfig) == (30, False, 9, "/k")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BLOCKWARDEN_NAMESPACE", " "),
        ("BLOCKWARDEN_ENGINE_IMAGE", ""),
        ("BLOCKWARDEN_POD_LABELS", "a"),
        ("BLOCKWARDEN_DRAIN_SECONDS", "-1"),
        ("BLOCKWARDEN_PROBE", "maybe"),
        ("BLOCKWARDEN_PORT", "http"),
    ],
)
def test_what_cannot_be_used_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        read_settings(LEAST | {name: value})
