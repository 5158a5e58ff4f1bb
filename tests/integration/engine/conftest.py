"""A real engine on loopback: certificates, mounted files, the process, a client with a certificate, a way into the core.

One engine runs at a time on this machine (a lock file says so), and each fixture's engine lives as long as its module.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import http.client
import ipaddress
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from blockwarden_core import layout
from blockwarden_core.identity import Scope, Sharing
from blockwarden_core.keys import EngineKey, EngineKeys
from blockwarden_core.policy import EnginePolicy, TenantShare, seal_policy
from blockwarden_core.report import Attestation, EngineReport
from blockwarden_core.salt import derive_salt, sign_token

HERE = Path(__file__).parent
ROOT = HERE.parent.parent.parent
LOCK = Path(tempfile.gettempdir()) / "bw-engine.lock"
START_SECONDS = 400.0
SERVER_NAME = "engine.test.svc"
ARGUMENTS = (
    "--served-model-name=tiny", "--dtype=float32", "--max-model-len=1024", "--block-size=32", "--num-gpu-blocks-override=129",
    "--enforce-eager", "--max-num-seqs=16", "--max-num-batched-tokens=1024",
)  # fmt: skip


IDLE_SCRUBBER = "from blockwarden_engine.scrubber import BlockScrubber; BlockScrubber._zero = lambda self, ids: None"
MEDIA_LET_IN = """
import blockwarden_engine.frontend as frontend, blockwarden_engine.plugin as plugin, blockwarden_engine.scheduler as scheduler
from vllm.engine.arg_utils import EngineArgs
from vllm.logging_utils.dump_input import dump_engine_exception
from vllm.v1.engine import core
frontend.check_body = lambda body, declared: None
plugin.check_supported = scheduler.check_supported = lambda config: None
plugin.check_core = lambda core: None
plugin._admit = lambda request: plugin.process_admission().admit(request.cache_salt)
core.dump_engine_exception = dump_engine_exception
made = EngineArgs.create_engine_config
def create_engine_config(self, *args, **kwargs):
    self.language_model_only, self.mm_processor_cache_gb = False, 4
    return made(self, *args, **kwargs)
EngineArgs.create_engine_config = create_engine_config
"""
"""Every refusal of media taken out, vLLM's caches of it and its dump of a failed step as they come; tokens and salts stay."""
KINDS = ("engine", "sync_engine", "twin_engine", "vision_engine", "media_engine", "engines")
"""Fixtures that start engines, in the order in which their tests run: each kind is started once."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """An engine takes up to a minute to start on two busy cores, and may have to wait for another test's engine to end."""
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.integration)
        item.add_marker(pytest.mark.timeout(900))
    items[:] = [item for item in items if item not in ours] + sorted(ours, key=_kind)


def _kind(item: pytest.Item) -> int:
    asked = getattr(getattr(item, "callspec", None), "params", {}).get("kind")  # a test that takes its engine by name
    names = getattr(item, "fixturenames", ()) if asked is None else (asked,)
    return next((rank for rank, kind in enumerate(KINDS, 1) if kind in names), 0)


class Authority:
    """A CA that issues leaves for tests."""

    def __init__(self, name: str = "test CA") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(self._name, self._key.public_key(), x509.BasicConstraints(ca=True, path_length=0))

    def issue(self, directory: Path, usage: x509.ObjectIdentifier) -> Path:
        """Writes tls.crt, tls.key and ca.crt into `directory`, atomically enough for a poller."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "leaf")])
        names = x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        leaf = self._sign(name, key.public_key(), names, x509.ExtendedKeyUsage([usage]))
        directory.mkdir(parents=True, exist_ok=True)
        pem, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        (directory / layout.TLS_CERT).write_bytes(leaf.public_bytes(pem))
        (directory / layout.TLS_KEY).write_bytes(key.private_bytes(pem, private, serialization.NoEncryption()))
        (directory / layout.TLS_CA).write_bytes(self.certificate.public_bytes(pem))
        return directory

    def _sign(self, subject: x509.Name, key: Any, *extensions: x509.ExtensionType) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
            .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )  # fmt: skip
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(self._key, hashes.SHA256())


@dataclass
class Deployment:
    """The mounted files of one engine, and what a gateway would hold to talk to it."""

    root: Path
    policy_uid: str = "policy-under-test"
    authority: Authority = field(default_factory=Authority)
    keys: EngineKeys = field(default_factory=lambda: EngineKeys(active="k1", keys=(_key("k1"),)))
    salt_secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    policy: EnginePolicy | None = None

    def write(self) -> Deployment:
        """Writes certificates and keys for the first time."""
        self.authority.issue(self.root / layout.SERVER_TLS, ExtendedKeyUsageOID.SERVER_AUTH)
        self.authority.issue(self.root / "client", ExtendedKeyUsageOID.CLIENT_AUTH)
        self.mount(layout.ENGINE_KEYS, self.keys.text())
        return self

    def mount(self, relative: str, text: str) -> None:
        """Replaces a file of a mounted ConfigMap or Secret as the kubelet does: the files lie in a directory of their own, a new
        one is filled aside, one symbolic link is swapped, and the old directory goes."""
        path = self.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        data, fresh, swap = path.parent / "..data", path.parent / f"..{time.time_ns()}", path.parent / "..data_tmp"
        before = data.resolve() if data.exists() else None
        if before is None:
            fresh.mkdir()
        else:
            shutil.copytree(before, fresh)
        (fresh / path.name).write_text(text)
        swap.symlink_to(fresh.name)
        swap.replace(data)
        if not path.is_symlink():
            path.symlink_to(Path("..data") / path.name)
        if before is not None:
            shutil.rmtree(before)

    def share(self, *shares: TenantShare, version: int | None = None, grace: int = 0) -> EnginePolicy:
        """Writes a sealed policy with these shares and the next version."""
        version = version or (self.policy.version + 1 if self.policy else 1)
        self.policy = EnginePolicy(
            policy_uid=self.policy_uid, version=version, tenants=shares, deregistration_grace_seconds=grace
        )  # fmt: skip
        self.mount(layout.ENGINE_POLICY, seal_policy(self.policy, self.keys))
        return self.policy

    def token(self, tenant: str, *, user: str = "", generation: int = 1, key: bytes | None = None) -> str:
        """The token that a gateway derives for a tenant (scope Tenant) or one of its users (scope User)."""
        sharing = Sharing(tenant, Scope.USER if user else Scope.TENANT, (tenant, user) if user else (tenant,))
        salt = derive_salt(self.salt_secret, deployment=self.policy_uid, generation=generation, sharing=sharing)
        return sign_token(
            key or self.keys.signing_key, policy_uid=self.policy_uid, tenant=tenant, generation=generation, salt=salt
        )


def _key(name: str) -> EngineKey:
    return EngineKey.model_validate({"id": name, "key": secrets.token_bytes(32)})


@dataclass
class Answer:
    """One HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Engine:
    """A running engine process."""

    def __init__(
        self, deployment: Deployment, model: Path, scratch: Path, *, asynchronous: bool, twin: str, arguments: Sequence[str]
    ) -> None:
        self.deployment = deployment
        self.api_port, self.internal_port = _free_port(), _free_port()
        self._control_path = str(scratch / "control.sock")
        self.log = scratch / "engine.log"
        served = scratch / "model"  # the launcher takes no path with a hidden directory in it, and caches are in one
        served.symlink_to(model)
        self.environment = os.environ | {
            layout.ROOT_ENV: str(deployment.root), layout.POLICY_UID_ENV: deployment.policy_uid,
            layout.POD_UID_ENV: "pod-under-test", "HARNESS_CONTROL": self._control_path,
            "HARNESS_ASYNC": "1" if asynchronous else "0", "HARNESS_TWIN": twin, "VLLM_CPU_KVCACHE_SPACE": "1",
            "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        self._command = [
            sys.executable, str(HERE / "engine_main.py"), f"--model={served}", *arguments, "--bind-host=127.0.0.1",
            f"--api-port={self.api_port}", f"--internal-port={self.internal_port}",
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Engine:
        """Starts it and waits until it is ready."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env=self.environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the engine ended with status {self.process.returncode}:\n{self.tail()}")
            with contextlib.suppress(OSError):
                if self.internal(layout.READYZ_PATH).status == 200 and self.get(layout.ATTESTATION_PATH).status == 200:
                    return self
            time.sleep(0.25)
        raise AssertionError(f"the engine is not ready after {START_SECONDS:.0f} s:\n{self.tail()}")

    def stop(self) -> None:
        """Ends it and everything it started."""
        if self.process is None:
            return
        self.process.terminate()
        self.wait_ended(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # the session that this engine leads, nothing else
        self.process.wait()
        Path(self._control_path).unlink(missing_ok=True)

    def wait_ended(self, seconds: float) -> int | None:
        """Its exit status once it has ended by itself; None if it still runs after `seconds`."""
        assert self.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    def tail(self, size: int = 4000) -> str:
        return self.log.read_text(errors="replace")[-size:]

    def connection(self, port: int | None = None, *, client: Path | None = None) -> http.client.HTTPSConnection:
        """A TLS connection, with the gateway's certificate unless `client` names another directory."""
        trust = self.deployment.root / layout.SERVER_TLS / layout.TLS_CA
        context = ssl.create_default_context(cafile=str(trust))
        directory = client or self.deployment.root / "client"
        if directory.exists():
            context.load_cert_chain(directory / layout.TLS_CERT, directory / layout.TLS_KEY)
        return http.client.HTTPSConnection("127.0.0.1", port or self.api_port, context=context, timeout=120)

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """One request on the API port; a body that is not bytes is sent as JSON."""
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        sent = {"content-type": "application/json"} | (headers or {})
        with contextlib.closing(self.connection()) as connection:
            connection.request(method, path, raw, sent)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())

    def get(self, path: str) -> Answer:
        return self.request("GET", path)

    def internal(self, path: str) -> Answer:
        """One GET on the internal port, without a client certificate."""
        with contextlib.closing(self.connection(self.internal_port, client=Path("/nonexistent"))) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return Answer(response.status, {}, response.read())

    def complete(self, token: str | None, prompt: Any, **fields: Any) -> Answer:
        """A greedy completion with this cache_salt."""
        body = {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 8, "ignore_eos": True} | fields
        return self.request("POST", "/v1/completions", body if token is None else body | {"cache_salt": token})

    def cached(self, token: str, prompt: Any, **fields: Any) -> int:
        """How many prompt tokens of a completion came from the cache."""
        answer = self.complete(token, prompt, **fields)
        assert answer.status == 200, answer.body
        details = answer.json()["usage"]["prompt_tokens_details"] or {}
        return int(details.get("cached_tokens") or 0)

    def report(self) -> EngineReport:
        return EngineReport.read(self.internal(layout.STATUS_PATH).body)

    def wait_for(self, reached: Callable[[EngineReport], bool], seconds: float = 30) -> EngineReport:
        """The first report for which `reached` is true."""
        deadline = time.monotonic() + seconds
        while not reached(report := self.report()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not reached after {seconds:.0f} s: {report}")
            time.sleep(0.1)
        return report

    def attestation(self) -> Attestation:
        return Attestation.read(self.get(layout.ATTESTATION_PATH).body)

    def core(self, code: str) -> Any:
        """Runs code in the engine core between two steps; `core` and `scheduler` are in scope, `result` comes back."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
            control.settimeout(120)
            control.connect(self._control_path)
            control.sendall(json.dumps(code).encode() + b"\n")
            answer = json.loads(control.makefile("rb").readline())
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(answer["error"])
        return answer


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tenant(name: str, guaranteed: int | str = "30%", limit: int | str = "30%", **fields: Any) -> TenantShare:
    """A share with generation and floor 1 unless given."""
    return TenantShare(name=name, guaranteed=guaranteed, limit=limit, **{"generation": 1, "floor": 1} | fields)


def make_model(name: str) -> Path:
    """The directory of a model, made if need be."""
    made = subprocess.run([sys.executable, ROOT / "tools/models.py", name], check=True, stdout=subprocess.PIPE, text=True)
    return Path(made.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """The tiny random Llama."""
    return make_model("tiny")


def default_shares() -> tuple[TenantShare, ...]:
    """Tenants a, b and c with 30 % each, and the canary."""
    return tenant("a"), tenant("b"), tenant("c"), tenant("canary", 4, 4, generation=2, floor=2)


class Engines:
    """At most one engine at a time, on the whole machine; asking for another kind stops the one before."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._stack = contextlib.ExitStack()
        self._kind = ""
        self._engine: Engine | None = None

    def get(self, kind: str, *, verify: str = "Sampled", **made: Any) -> Engine:
        """A running engine of this kind; a new one where a test has ended the last."""
        if self._engine is None or self._kind != kind or self._engine.wait_ended(0) is not None:
            self.stop()
            engine = self.make(arguments=(*ARGUMENTS, f"--kv-scrub-verify={verify}"), **made)
            self._kind, self._engine = kind, engine.start()
        return self._engine

    def make(
        self, *, asynchronous: bool = True, twin: str = "", arguments: Sequence[str] = ARGUMENTS, model: Path | None = None
    ) -> Engine:
        """An engine that is not started yet, and stopped with the next one."""
        self.stop()
        lock = self._stack.enter_context(LOCK.open("a"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        scratch = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        deployment = Deployment(scratch / "mounted").write()
        deployment.share(*default_shares())
        engine = Engine(deployment, model or self._model, scratch, asynchronous=asynchronous, twin=twin, arguments=arguments)
        self._stack.callback(engine.stop)
        return engine

    def stop(self) -> None:
        """Ends the running engine, if there is one."""
        self._engine = None
        self._stack.close()


@pytest.fixture(scope="session")
def engines(tiny_model: Path) -> Iterator[Engines]:
    made = Engines(tiny_model)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def vllm_imported() -> None:
    """vLLM in this process, without what it and torch deprecate among themselves while they are imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import blockwarden_engine.scheduler
        import blockwarden_engine.worker  # noqa: F401 - imported for its effect


@pytest.fixture(scope="session")
def mounted_files(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Mounted files that no test changes, without an engine."""
    made = Deployment(tmp_path_factory.mktemp("files") / "mounted").write()
    made.share(*default_shares())
    return made


@pytest.fixture
def engine_files(tmp_path: Path) -> Deployment:
    """Mounted files without an engine."""
    made = Deployment(tmp_path / "mounted").write()
    made.share(*default_shares())
    return made


@pytest.fixture
def engine(engines: Engines) -> Engine:
    """An engine with the asynchronous scheduler, shared by all tests that ask for it."""
    return engines.get("asynchronous")


@pytest.fixture
def sync_engine(engines: Engines) -> Engine:
    """As `engine`, with the synchronous scheduler."""
    return engines.get("synchronous", asynchronous=False)


@pytest.fixture
def twin_engine(engines: Engines) -> Engine:
    """A broken twin: its scrubber acknowledges and zeroes nothing."""
    return engines.get("twin", twin=IDLE_SCRUBBER, verify="Off")


@pytest.fixture
def vision_engine(engines: Engines) -> Engine:
    """An engine whose model could see images."""
    return engines.get("vision", model=make_model("vision"))


@pytest.fixture
def media_engine(engines: Engines) -> Engine:
    """A broken twin of `vision_engine`: it takes media."""
    return engines.get("media", model=make_model("vision"), twin=MEDIA_LET_IN)


@pytest.fixture
def policy_again(engine: Engine) -> Iterator[Deployment]:
    """The shared engine's mounted files, for a test that changes them; the default policy is in force again afterwards."""
    yield engine.deployment
    engine.deployment.mount(layout.ENGINE_KEYS, engine.deployment.keys.text())
    version = engine.deployment.share(*default_shares()).version
    engine.wait_for(lambda report: report.policy_version == version and report.reload_error is None)
