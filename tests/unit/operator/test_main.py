"""The edge of the process: one rule of access for kopf's watches and for our own client."""

from __future__ import annotations

from pathlib import Path

import kopf
import pytest

from blockwarden_operator.__main__ import login_with
from blockwarden_operator.kube import connect

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: it
contexts: [{name: it, context: {cluster: it, user: it}}]
clusters: [{name: it, cluster: {server: "http://kubeconfig.example"}}]
users: [{name: it, user: {token: t}}]
"""


@pytest.fixture
def in_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod with a service account, as kopf would find it."""
    account = kopf.ConnectionInfo(server="https://service-account.example")
    monkeypatch.setattr(kopf, "login_with_service_account", lambda **_: account)


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "config"
    path.write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(path))
    return str(path)


@pytest.mark.usefixtures("in_cluster")
async def test_a_kubeconfig_goes_before_the_service_account_for_watches_and_writes(kubeconfig: str) -> None:
    watches = await login_with(kubeconfig)(settings=kopf.OperatorSettings())
    async with await connect(kubeconfig) as kube:
        writes = kube._api.configuration.host
    assert watches is not None
    assert (watches.server, writes) == ("http://kubeconfig.example", "http://kubeconfig.example")


@pytest.mark.usefixtures("in_cluster")
async def test_without_a_kubeconfig_the_service_account_is_used() -> None:
    watches = await login_with(None)(settings=kopf.OperatorSettings())
    assert watches is not None
    assert watches.server == "https://service-account.example"
