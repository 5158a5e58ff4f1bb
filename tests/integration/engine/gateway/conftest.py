"""The real gateway process in front of the real engine, and the engine's own record of what reached it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from blockwarden_core import layout
from blockwarden_core.identity import Scope, Sharing
from blockwarden_core.keys import ApiKeyDigest, ApiKeys, SaltKeyring, SaltSecret, api_key_digest
from blockwarden_core.policy import EngineAddress, GatewayPolicy, GatewayTenant, TenantShare
from blockwarden_core.report import GatewayReport
from blockwarden_core.salt import b64url, derive_salt, sign_token

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
RECORDER = f"import runpy; runpy.run_path({str(HERE / 'engine_recorder.py')!r})"
SCOPES = {"a": Scope.TENANT, "b": Scope.TENANT, "c": Scope.USER, "s": Scope.SESSION, "r": Scope.REQUEST,
          "open": Scope.NONE, "public": Scope.NONE}  # fmt: skip
PAYERS = ("a", "b", "c", "s", "r", "shared")
USERS = ("ann", "bob")
CANARY_BLOCKS = 12
"""What the attestation's canaries need, in blocks of 32 tokens."""
Header = tuple[str, str]


@dataclass(frozen=True)
class Reply:
    """What a client got: the status and the body, a stream's as it came."""

    status: int
    body: bytes

    @property
    def cached(self) -> int:
        """How many prompt tokens came from the cache."""
        return int(self._usage()["prompt_tokens_details"]["cached_tokens"])

    @property
    def complete(self) -> bool:
        """Whether it is a whole answer: a stream to its end, or one document."""
        return self.body.rstrip().endswith(b"data: [DONE]") if self.body.startswith(b"data:") else bool(self._usage())

    def _usage(self) -> Any:
        if not self.body.startswith(b"data:"):
            return json.loads(self.body)["usage"]
        events = [line[5:] for line in self.body.split(b"\n") if line.startswith(b"data:") and b"[DONE]" not in line]
        return next(usage for event in reversed(events) if (usage := json.loads(event).get("usage")))


def generation_body(path: str, prompt: str, *, stream: bool, **fields: Any) -> dict[str, Any]:
    """A small greedy request for a route."""
    text = {"messages": [{"role": "user", "content": prompt}]} if path.endswith("/chat/completions") else {"prompt": prompt}
    body = {"model": "tiny", "max_tokens": 4, "temperature": 0, **text}
    return body | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {}) | fields


@dataclass
class Front:
    """A gateway, its engine, and the record."""

    engine: Any
    root: Path
    ports: tuple[int, int]
    generations: dict[str, int]
    keys: dict[tuple[str, str], str] = field(default_factory=dict)
    _read: int = 0

    def mount_all(self) -> None:
        """Writes everything that a gateway reads."""
        for tenant in SCOPES:
            self.keys |= {(tenant, user): secrets.token_urlsafe(32) for user in USERS}
        deployment = self.engine.deployment
        deployment.authority.issue(self.root / layout.CLIENT_TLS, ExtendedKeyUsageOID.CLIENT_AUTH)
        deployment.authority.issue(self.root / layout.INTERNAL_TLS, ExtendedKeyUsageOID.SERVER_AUTH)
        digests = (ApiKeyDigest(digest=api_key_digest(key), tenant=t, user=u) for (t, u), key in self.keys.items())
        policy = GatewayPolicy(
            policy_uid=deployment.policy_uid, version=1, model="tiny", expose_cached_tokens=True,
            engine=EngineAddress(host="127.0.0.1", port=self.engine.api_port, server_name="engine.test.svc"),
            tenants=tuple(GatewayTenant(name=name, scope=scope) for name, scope in SCOPES.items()),
        )  # fmt: skip
        self._mount(layout.API_KEYS, ApiKeys(keys=tuple(digests)).text())
        self._mount(layout.GATEWAY_POLICY, policy.text())
        self._mount(layout.ENGINE_KEYS, deployment.keys.text())
        self.mount_keyring()

    def mount_keyring(self) -> None:
        """Writes the keyring with the generations as they are."""
        secret = SaltSecret.model_validate({"id": "s1", "secret": b64url(self.engine.deployment.salt_secret)})
        self._mount(layout.SALT_KEYRING, SaltKeyring(secrets=(secret,), generations=self.generations).text())

    def share(self, **rotating: tuple[int, int]) -> None:
        """Puts an engine policy into force; `rotating` gives a tenant's generation and floor, which are its own otherwise."""

        def made(name: str) -> TenantShare:
            generation, floor = rotating.get(name, (self.generations[name],) * 2)
            return TenantShare(name=name, guaranteed="15%", limit="15%", generation=generation, floor=floor)

        canary = TenantShare(name="canary", guaranteed=CANARY_BLOCKS, limit=CANARY_BLOCKS, generation=2, floor=2)
        version = self.engine.deployment.share(*map(made, PAYERS), canary).version
        self.engine.wait_for(lambda report: report.policy_version == version and report.reload_error is None)

    def token(self, tenant: str, scope: Scope, *ids: str) -> str:
        """What core derives and signs for a trust domain, from the secrets that the test has written."""
        deployment, generation = self.engine.deployment, self.generations[tenant]
        uid, sharing = deployment.policy_uid, Sharing(tenant, scope, ids)
        salt = derive_salt(deployment.salt_secret, deployment=uid, generation=generation, sharing=sharing)
        return sign_token(deployment.keys.signing_key, policy_uid=uid, tenant=tenant, generation=generation, salt=salt)

    def post(self, path: str, body: Any, who: tuple[str, str], headers: Sequence[Header] = ()) -> Reply:
        """One request at the gateway's public port, with somebody's API key."""
        raw = json.dumps(body).encode()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.ports[0], timeout=120)) as connection:
            connection.putrequest("POST", path)
            sent = [("Authorization", f"Bearer {self.keys[who]}"), ("Content-Type", "application/json"), *headers]
            for name, value in (*sent, ("Content-Length", str(len(raw)))):
                connection.putheader(name, value)
            connection.endheaders(raw)
            response = connection.getresponse()
            return Reply(response.status, response.read())

    def records(self) -> list[dict[str, Any]]:
        """What reached the engine since the last call, attestation's canaries left out."""
        path = self.engine.log.with_name("record.jsonl")
        lines = path.read_text().splitlines() if path.exists() else []
        fresh, self._read = lines[self._read :], len(lines)
        return [record for record in map(json.loads, fresh) if not str(record["cache_salt"]).startswith("v1.canary.")]

    @contextlib.contextmanager
    def unguarded(self) -> Iterator[None]:
        """The engine's own check of fields is lifted meanwhile."""
        path = self.engine.log.with_name("unguarded")
        path.touch()
        try:
            yield
        finally:
            path.unlink()

    def internal(self, path: str) -> Reply:
        """One GET on the gateway's internal port."""
        context = ssl.create_default_context(cafile=str(self.root / layout.INTERNAL_TLS / layout.TLS_CA))
        with contextlib.closing(
            http.client.HTTPSConnection("127.0.0.1", self.ports[1], context=context, timeout=5)
        ) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return Reply(response.status, response.read())

    def wait_for(self, reached: Callable[[GatewayReport], bool], seconds: float = 20) -> None:
        """Until the gateway's report satisfies `reached`."""
        deadline = time.monotonic() + seconds
        while not reached(report := GatewayReport.read(self.internal(layout.STATUS_PATH).body)):
            assert time.monotonic() < deadline, f"not reached after {seconds:.0f} s: {report}"
            time.sleep(0.05)

    def retried(self, reason: str) -> float:
        """How many requests the gateway has sent a second time for this reason."""
        page = self.internal(layout.METRICS_PATH).body.decode()
        lines = [line for line in page.splitlines() if line.startswith(f'blockwarden_gateway_retries_total{{reason="{reason}"}}')]
        return float(lines[0].split()[-1]) if lines else 0.0

    def _mount(self, relative: str, text: str) -> None:
        path = self.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(path)


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1]), int(two.getsockname()[1])


@pytest.fixture(scope="session")
def workspace_python() -> str:
    """The Python that has the gateway: the workspace's, made from the lock file where it is missing."""
    clean = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    ask = [str(ROOT / "tools/uv"), "run", "--frozen", "--project", str(ROOT), "python", "-c", "import sys; print(sys.executable)"]
    found = subprocess.run(ask, check=True, stdout=subprocess.PIPE, text=True, env=clean)
    return found.stdout.strip().splitlines()[-1]


@contextlib.contextmanager
def running(front: Front, python: str, log: Path) -> Iterator[None]:
    """The gateway's process, ready to serve."""
    environment = os.environ | {
        layout.ROOT_ENV: str(front.root), layout.POLICY_UID_ENV: front.engine.deployment.policy_uid,
        layout.POD_UID_ENV: "gateway-under-test", "HARNESS_PUBLIC_PORT": str(front.ports[0]),
        "HARNESS_INTERNAL_PORT": str(front.ports[1]), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen([python, str(HERE / "gateway_main.py")], env=environment, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
            with contextlib.suppress(OSError):
                if front.internal(layout.READYZ_PATH).status == 200:
                    break
            time.sleep(0.1)
        yield
        process.terminate()
        assert process.wait(20) == 0, log.read_text()[-4000:]
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def front(engines: Any, workspace_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A gateway in front of a recorded engine, for all tests of a module."""
    scratch = tmp_path_factory.mktemp("gateway")
    made = Front(
        engines.get("recorded", twin=RECORDER), scratch / "mounted", _free_ports(), dict.fromkeys(PAYERS, 1) | {"canary": 2}
    )
    made.share()
    made.mount_all()
    with running(made, workspace_python, scratch / "gateway.log"):
        made.records()
        yield made


@pytest.fixture(params=["/v1/chat/completions", "/v1/completions"])
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def body_for(path: str, stream: bool) -> Callable[..., dict[str, Any]]:
    """A request body of this route, streamed or not."""
    return lambda prompt, **fields: generation_body(path, prompt, stream=stream, **fields)
