"""The product, brought up once for all end-to-end tests by the code that `make demo` runs, on a node of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from stack import demo, traces
from stack.client import Client
from stack.deploy import NAMESPACE, POLICY, Deployed
from stack.kubectl import Cluster

NODE, PORT = "bw-e2e", 18090


@dataclass(frozen=True)
class Product:
    """The running product, and the machine as it was before it."""

    deployed: Deployed
    url: str
    before: traces.Traces

    @property
    def cluster(self) -> Cluster:
        return self.deployed.cluster

    def client(self, tenant: str) -> Client:
        return Client(self.url, self.deployed.api_key(tenant), timeout=300)

    def run_in(self, pod: str, script: str, *, namespace: str = NAMESPACE, timeout: float = 60) -> str:
        """Standard output of a Python script in a pod."""
        return self.cluster.run("-n", namespace, "exec", "-i", pod, "--", "python3", "-", stdin=script, timeout=timeout)

    def owned(self) -> dict[str, str]:
        """Kind/name -> resourceVersion of everything that carries the policy's label, and of the policy itself."""
        kinds = "secrets,configmaps,services,serviceaccounts,deployments,networkpolicies"
        items = self.cluster.get("-n", NAMESPACE, kinds, "-l", f"app.kubernetes.io/instance={POLICY}")["items"]
        items.append(self.deployed.policy())
        return {f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["resourceVersion"] for item in items}


@pytest.fixture(scope="session")
def product(request: pytest.FixtureRequest) -> Iterator[Product]:
    """The demo, up and judged by itself; removed at the end of the session."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    before = traces.take()
    os.environ["BLOCKWARDEN_E2E_RUN"] = str(os.getpid())  # inherited by what this run starts: test_teardown looks for it
    try:
        with capture.global_and_fixture_disabled():  # half an hour of silence would look like a hang
            _, deployed, url = demo.up(NODE, PORT)
        yield Product(deployed, url, before)
    finally:
        demo.down(NODE)
