"""The operator's reconcile against a real kube-apiserver and controller-manager, with pods that answer without a kubelet.

`Cluster` is a namespace with a client and kubectl (whoever edits by hand); `Fleet` makes the pods of the Deployments Running and
serves their reports over TLS on loopback, under the certificates that the operator itself issued.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import secrets
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from blockwarden_core.hooks import REQUIRED_HOOKS
from blockwarden_core.keys import EngineKeys, SaltKeyring
from blockwarden_core.policy import open_policy
from blockwarden_core.report import EngineReport, EngineSeen, GatewayReport, PoolBlocks, TenantBlocks
from blockwarden_operator.errors import ClusterError
from blockwarden_operator.internal import Inspector
from blockwarden_operator.kube import Kube, connect
from blockwarden_operator.observed import Observed, Pod
from blockwarden_operator.plan import Plan
from blockwarden_operator.reconcile import Reconciler
from blockwarden_operator.resources import CHILD_KINDS
from blockwarden_operator.settings import PodSelection, Settings
from localnode.controlplane import ControlPlane, Programs

ROOT = Path(__file__).parents[3]
Manifest = dict[str, Any]
SETTINGS = Settings(
    operator=PodSelection("blockwarden-system", {"app.kubernetes.io/name": "blockwarden-operator"}),
    dns=PodSelection("kube-system", {"k8s-app": "kube-dns"}),
    engine_image="blockwarden/engine:0.1.0",
    gateway_image="blockwarden/gateway:0.1.0",
    drain_seconds=60,
)
POLICY = yaml.safe_load("""
apiVersion: blockwarden.dev/v1alpha1
kind: TenantPolicy
metadata: {name: demo}
spec:
  model: {name: tiny, source: {path: /models/tiny}}
  engine:
    kvCache: {blockSize: 32, blocks: 512}
    resources: {requests: {cpu: 500m, memory: 1024Mi}, limits: {memory: "1073741824"}}
  gateway: {resources: {requests: {cpu: "0.1"}}}
  tenants:
  - {name: acme, kvCache: {guaranteed: 40%}}
  - {name: globex, kvCache: {guaranteed: 40%}}
""")


@dataclass
class Cluster:
    """One namespace of the control plane."""

    namespace: str
    kubeconfig: Path
    kubectl_program: str
    kube: Kube = field(repr=False)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        argv = (self.kubectl_program, "--kubeconfig", str(self.kubeconfig), "-n", self.namespace, *arguments)
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, manifest: Manifest) -> None:
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(manifest))

    def get(self, kind: str, name: str) -> Manifest:
        return dict(json.loads(self.kubectl("get", kind, name, "-o", "json")))

    async def children(self) -> dict[tuple[str, str], Manifest]:
        """Every object of ours in the namespace, whoever made it."""
        found = {}
        for kind in CHILD_KINDS:
            for manifest in await self.kube.select(kind.kind, self.namespace, selector="app.kubernetes.io/instance=demo"):
                found[kind.kind, manifest["metadata"]["name"]] = manifest
        return found

    async def versions(self) -> dict[tuple[str, str], str]:
        """The resourceVersion of every child and of the policy: equal before and after means that nothing was written.

        Deployments are told apart by generation and annotations: their controller writes their status meanwhile.
        """
        found = {}
        for ref, manifest in (await self.children()).items():
            metadata = manifest["metadata"]
            deployment = json.dumps([metadata["generation"], metadata["annotations"]]) if ref[0] == "Deployment" else ""
            found[ref] = deployment or metadata["resourceVersion"]
        policy = await self.kube.get("TenantPolicy", self.namespace, "demo")
        if policy is not None:
            found["TenantPolicy", "demo"] = policy["metadata"]["resourceVersion"]
        return found

    async def policy(self) -> Manifest:
        found = await self.kube.get("TenantPolicy", self.namespace, "demo")
        assert found is not None
        return found

    async def condition(self, kind: str) -> Manifest:
        status = (await self.policy()).get("status", {})
        return next((entry for entry in status.get("conditions", []) if entry["type"] == kind), {})

    async def secret(self, name: str, field_name: str) -> bytes:
        manifest = await self.kube.get("Secret", self.namespace, name)
        assert manifest is not None
        return base64.b64decode(manifest["data"][field_name])

    async def until_quota_counts(self, name: str) -> None:
        """Until the quota's controller has counted: before that it forbids nothing that can be told apart."""
        deadline = time.monotonic() + 30
        while not self.get("resourcequota", name).get("status", {}).get("used"):
            assert time.monotonic() < deadline, "no controller counts the quota"
            await asyncio.sleep(0.2)

    async def events(self) -> list[Manifest]:
        return list(json.loads(self.kubectl("get", "events.events.k8s.io", "-o", "json"))["items"])


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    with ControlPlane("test-operator") as running:
        kubectl = Programs.resolve().kubectl
        for path in sorted((ROOT / "crds").glob("*.yaml")):
            argv = (kubectl, "--kubeconfig", str(running.kubeconfig), "apply", "--server-side", "-f", str(path))
            subprocess.run(argv, check=True, capture_output=True)
        deadline = time.monotonic() + 30
        probe = (kubectl, "--kubeconfig", str(running.kubeconfig), "get", "tenantpolicies", "-A")
        while subprocess.run(probe, check=False, capture_output=True).returncode:
            assert time.monotonic() < deadline, "the CRD was not served in time"
            time.sleep(0.2)
        yield running


@pytest.fixture(scope="session")
def numbers() -> Iterator[int]:
    return itertools.count()


@pytest.fixture
async def cluster(control_plane: ControlPlane, numbers: Iterator[int]) -> AsyncIterator[Cluster]:
    namespace = f"operator-{next(numbers)}"
    kubectl = Programs.resolve().kubectl
    async with await connect(str(control_plane.kubeconfig)) as kube:
        made = Cluster(namespace, control_plane.kubeconfig, kubectl, kube)
        made.kubectl("create", "namespace", namespace)
        yield made
        made.kubectl("delete", "namespace", namespace, "--wait=false")


@dataclass
class FakePod:
    """A pod that answers: what its process has loaded, and the server that says so."""

    pod: Pod
    report: GatewayReport | EngineReport | None
    port: int
    runner: web.AppRunner


class Fleet:
    """The pods of a policy, as kubelet and our images would run them."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.pods: dict[str, FakePod] = {}
        self.open_ports: set[int] = set()
        self.in_flight: dict[str, dict[str, int]] = {}
        self.stale_blocks = 0
        self.attested = True
        with socket.create_server(("127.0.0.1", 0)) as closed:
            self.closed_port = closed.getsockname()[1]

    def locate(self, pod: Pod, port: int) -> tuple[str, int]:
        fake = self.pods.get(pod.uid)
        internal = port in (9090, 9400) or port in self.open_ports
        return "127.0.0.1", fake.port if fake is not None and internal else self.closed_port

    async def start(self) -> None:
        """Make every pod that is not yet Running so."""
        for component, secret in (("engine", "demo-engine-tls"), ("gateway", "demo-gateway-internal-tls")):
            for manifest in await self._pods(component):
                if manifest["metadata"]["uid"] not in self.pods:
                    await self._start(manifest, component, secret)

    async def wait_for_pods(self, count: int) -> None:
        """Until the controllers have made that many pods."""
        deadline = time.monotonic() + 20
        while len([*await self._pods("engine"), *await self._pods("gateway")]) < count:
            assert time.monotonic() < deadline, "the Deployments made no pods"
            await asyncio.sleep(0.1)

    async def _pods(self, component: str) -> list[Manifest]:
        selector = f"app.kubernetes.io/instance=demo,app.kubernetes.io/component={component}"
        return await self.cluster.kube.select("Pod", self.cluster.namespace, selector=selector)

    async def _start(self, manifest: Manifest, component: str, secret: str) -> None:
        name, uid = manifest["metadata"]["name"], manifest["metadata"]["uid"]
        ready = [{"type": kind, "status": "True", "lastTransitionTime": _ago(60)} for kind in ("Ready", "ContainersReady")]
        status = {"phase": "Running", "podIP": f"10.0.0.{len(self.pods) + 1}", "conditions": ready}
        self.cluster.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
        pod = Pod(name, uid, status["podIP"], component, True, False, None)
        self.pods[uid] = await self._serve(pod, secret)

    async def _serve(self, pod: Pod, secret: str) -> FakePod:
        paths = []
        for file in ("tls.crt", "tls.key"):
            path = self.folder / f"{pod.uid}-{file}"
            path.write_bytes(await self.cluster.secret(secret, file))
            paths.append(path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*paths)
        fake = FakePod(pod, None, 0, web.AppRunner(self._app(pod.uid), access_log=None))
        await fake.runner.setup()
        site = web.TCPSite(fake.runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        fake.port = fake.runner.addresses[0][1]
        return fake

    def _app(self, uid: str) -> web.Application:
        async def status(_: web.Request) -> web.Response:
            report = self.pods[uid].report
            return web.Response(status=503) if report is None else web.Response(text=report.text())

        app = web.Application()
        app.router.add_get("/status", status)
        return app

    async def refresh(self, *, gateways: bool = True, engines: bool = True) -> None:
        """What kubelet and the processes do by themselves: load what is mounted now."""
        for fake in self.pods.values():
            if fake.pod.component == "gateway" and gateways:
                fake.report = await self._gateway_report(fake.pod)
            if fake.pod.component == "engine" and engines:
                fake.report = await self._engine_report(fake.pod)

    async def _gateway_report(self, pod: Pod) -> GatewayReport:
        keyring = SaltKeyring.read(await self.cluster.secret("demo-salt-keyring", "keyring.json"))
        document = await self._document("demo-gateway", "gateway.json")
        engines = tuple(
            EngineSeen(
                address=f"{fake.pod.ip}:8000", pod_uid=fake.pod.uid, boot_nonce="n", attested=self.attested, reason="shares cache"
            )
            for fake in self.pods.values()
            if fake.pod.component == "engine"
        )
        return GatewayReport(
            pod_uid=pod.uid,
            policy_version=json.loads(document)["version"],
            secret_id=keyring.current.id,
            generations=keyring.generations,
            in_flight=self.in_flight,
            engines=engines,
        )

    async def _engine_report(self, pod: Pod) -> EngineReport:
        keys = EngineKeys.read(await self.cluster.secret("demo-engine-key", "keys.json"))
        uid = (await self.cluster.policy())["metadata"]["uid"]
        policy = open_policy(await self._document("demo-engine", "engine.json"), keys, policy_uid=uid, in_force=None)
        tenants = tuple(
            TenantBlocks(
                name=share.name,
                generation=share.generation,
                floor=share.floor,
                guaranteed_blocks=1,
                limit_blocks=1,
                owned_blocks=0,
                running=0,
                waiting=0,
                stale_blocks=self.stale_blocks,
                stale_requests=0,
            )
            for share in policy.tenants
        )
        return EngineReport(
            pod_uid=pod.uid,
            boot_nonce="n",
            policy_version=policy.version,
            pool=PoolBlocks(total=511, clean=511, owned=0, dirty=0, scrubbing=0),
            tenants=tenants,
            counters=dict.fromkeys(sorted(REQUIRED_HOOKS)[:1], 0),
        )

    async def _document(self, config_map: str, file: str) -> str:
        manifest = await self.cluster.kube.get("ConfigMap", self.cluster.namespace, config_map)
        assert manifest is not None
        return str(manifest["data"][file])

    async def stop(self) -> None:
        for fake in self.pods.values():
            await fake.runner.cleanup()


def _ago(seconds: int) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
async def fleet(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Fleet]:
    made = Fleet(cluster, tmp_path)
    yield made
    await made.stop()


class Recorder(Reconciler):
    """A reconciler that keeps a list of what it wrote."""

    writes: list[str]

    async def apply_plan(self, observed: Observed, plan: Plan) -> list[str]:
        written = await super().apply_plan(observed, plan)
        self.writes.extend(written)
        return written


class Operator:
    """An operator that lives as long as the test wants: `restart` leaves nothing of it but the cluster."""

    def __init__(self, cluster: Cluster, fleet: Fleet) -> None:
        self.cluster, self.fleet = cluster, fleet
        self.shift = timedelta()
        self.restart()

    def restart(self) -> None:
        # Probes are asked anew each time: a test cannot wait for the period between two of them.
        self.reconciler = Recorder(
            self.cluster.kube,
            Inspector(True, _hours(), self.fleet.locate),
            SETTINGS,
            secrets.token_bytes,
            lambda: datetime.now(UTC) + self.shift,
        )
        self.reconciler.writes = []

    async def reconcile(self, times: int = 1) -> float | None:
        again = None
        for _ in range(times):
            again = await self._reconcile()
        return again

    async def _reconcile(self, tries: int = 5) -> float | None:
        """One reconcile, tried again as the queue would where a controller wrote to an object after it was read."""
        try:
            return await self.reconciler.reconcile((self.cluster.namespace, "demo"))
        except ClusterError as error:
            if tries == 1 or not str(error).endswith("422 Invalid"):
                raise
        return await self._reconcile(tries - 1)


def _hours() -> Any:
    """A clock on which an hour passes between two looks."""
    ticks = itertools.count(0, 3600)
    return lambda: float(next(ticks))


@pytest.fixture
def operator(cluster: Cluster, fleet: Fleet) -> Operator:
    return Operator(cluster, fleet)


@pytest.fixture
def manifest() -> Manifest:
    return dict(json.loads(json.dumps(POLICY)))


@pytest.fixture
async def served(cluster: Cluster, fleet: Fleet, operator: Operator, manifest: Manifest) -> Operator:
    """A policy that is Ready, with one engine and one gateway that answer."""
    cluster.apply(manifest)
    await operator.reconcile()
    await fleet.wait_for_pods(2)
    await fleet.start()
    await fleet.refresh()
    deadline = time.monotonic() + 20
    while (await cluster.condition("Ready")).get("status") != "True":
        assert time.monotonic() < deadline, json.dumps((await cluster.policy())["status"], indent=1)
        await operator.reconcile()
        await asyncio.sleep(0.1)
    return operator
