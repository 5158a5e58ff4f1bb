"""What the operator renders is what gateway and engine read: the mounts of each Deployment are laid out as kubelet would, and the
programs' own readers open what lies there.
"""

from __future__ import annotations

import base64
import hashlib
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from blockwarden_core import layout
from blockwarden_core.identity import Scope, Sharing
from blockwarden_core.keys import EngineKeys
from blockwarden_core.policy import open_policy
from blockwarden_core.salt import derive_salt, sign_token, verify_token
from blockwarden_engine.launch import plan_launch
from blockwarden_gateway.material import DOCUMENTS, assemble, read_document
from blockwarden_gateway.settings import read_settings
from blockwarden_operator.observed import Observed
from blockwarden_operator.plan import Plan, plan_policy
from blockwarden_operator.settings import PodSelection, Settings

UID = "8b9f5a52-0000-4000-8000-000000000001"
POLICY = yaml.safe_load("""
metadata: {name: demo, namespace: ns, generation: 1}
spec:
  model: {name: tiny, source: {path: /models/tiny}}
  engine:
    maxModelLen: 2048
    gpuMemoryUtilization: 0.9
    kvCache: {blockSize: 32, blocks: 512, scrubVerify: Always}
    kvEvents: {enabled: true}
    extraArgs: [--enforce-eager, --max-num-seqs=8]
    env: [{name: OMP_WAIT_POLICY, value: PASSIVE}]
  gateway: {tls: {secretName: public}}
  isolation: {scope: None}
  tenants:
  - {name: acme, scope: User, apiKeys: [{name: one, user: ann, secretRef: {name: keys, key: ann}}], kvCache: {guaranteed: 40%}}
  - {name: docs, kvCache: {guaranteed: 10%}, models: [{name: assistant}]}
  - {name: wiki, kvCache: {guaranteed: 10%}}
""")


@pytest.fixture(scope="module")
def plan() -> Plan:
    policy = {**POLICY, "metadata": {**POLICY["metadata"], "uid": UID}}
    settings = Settings(PodSelection("ops", {"a": "b"}), PodSelection("kube-system", {"k8s-app": "kube-dns"}), "e:1", "g:1")
    encoded = base64.b64encode(b"k" * 40).decode()
    referenced: dict[str, dict[str, Any] | None] = {
        "keys": {"metadata": {}, "data": {"ann": encoded}},
        "public": {"metadata": {}, "data": {"tls.crt": encoded, "tls.key": encoded}},
    }
    observed = Observed(policy=policy, children={}, now=datetime.now(UTC), referenced=referenced)
    drawn = iter(range(1000))
    made = plan_policy(observed, settings, lambda n: hashlib.shake_256(str(next(drawn)).encode()).digest(n))
    assert made.status["conditions"][0]["status"] == "True", made.status
    return made


def lay_out(plan: Plan, component: str, root: Path) -> dict[str, Any]:
    """Every file that the component's container sees below ROOT, written below `root`; returns the container."""
    objects = {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in plan.apply}
    pod = objects["Deployment", f"demo-{component}"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for mounted in container["volumeMounts"]:
        if not mounted["mountPath"].startswith(layout.ROOT):
            continue
        assert mounted["readOnly"] is True
        assert "subPath" not in mounted
        folder = root / mounted["mountPath"].removeprefix(layout.ROOT + "/")
        folder.mkdir(parents=True)
        for name, content in contents(objects, volumes[mounted["name"]]).items():
            (folder / name).write_bytes(content)
    return dict(container)


def contents(objects: Mapping[tuple[str, str], Any], volume: Mapping[str, Any]) -> dict[str, bytes]:
    if "configMap" in volume:
        return {name: text.encode() for name, text in objects["ConfigMap", volume["configMap"]["name"]]["data"].items()}
    name = volume["secret"]["secretName"]
    if ("Secret", name) not in objects:  # the user's own
        return {item["path"]: b"theirs" for item in volume["secret"]["items"]}
    return {field: base64.b64decode(value) for field, value in objects["Secret", name]["data"].items()}


def environment(container: Mapping[str, Any], root: Path) -> dict[str, str]:
    found = {entry["name"]: entry.get("value", "pod-uid") for entry in container["env"]}
    return {**found, layout.ROOT_ENV: str(root)}


def test_a_gateway_reads_all_that_is_mounted(plan: Plan, tmp_path: Path) -> None:
    container = lay_out(plan, "gateway", tmp_path)
    settings = read_settings(environment(container, tmp_path))
    assert settings.policy_uid == UID
    assert settings.public_port == layout.GATEWAY_PUBLIC_TLS_PORT
    material = assemble({path: read_document(path, (tmp_path / path).read_text(), policy_uid=UID) for path in DOCUMENTS})
    assert {subject.tenant for subject in material.subjects.values()} == {"acme", "docs", "wiki"}
    assert [subject.user for subject in material.subjects.values() if subject.tenant == "acme"] == ["ann"]
    assert {name: tenant.scope for name, tenant in material.tenants.items()} == {
        "acme": Scope.USER,
        "docs": Scope.NONE,
        "wiki": Scope.NONE,
    }
    for folder in (layout.CLIENT_TLS, layout.INTERNAL_TLS):
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(tmp_path / folder / "tls.crt", tmp_path / folder / "tls.key")
        ssl.create_default_context(cafile=str(tmp_path / folder / "ca.crt"))
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"public": settings.public_port, "internal": settings.internal_port}


def test_an_engine_reads_all_that_is_mounted_and_starts_with_what_it_is_told(plan: Plan, tmp_path: Path) -> None:
    container = lay_out(plan, "engine", tmp_path)
    keys = EngineKeys.read((tmp_path / layout.ENGINE_KEYS).read_text())
    policy = open_policy((tmp_path / layout.ENGINE_POLICY).read_text(), keys, policy_uid=UID, in_force=None)
    assert {share.name: share.guaranteed for share in policy.tenants} == {"acme": "40%", "shared": "20%", "canary": 24}
    launch = plan_launch(container["args"], environment(container, tmp_path), boot_nonce="0" * 32)
    assert launch.tls_directory == tmp_path / layout.SERVER_TLS
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(launch.tls_directory / "tls.crt", launch.tls_directory / "tls.key")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"api": launch.api_port, "internal": launch.internal_port}


def test_no_engine_file_tells_a_salt(plan: Plan, tmp_path: Path) -> None:
    lay_out(plan, "engine", tmp_path / "engine")
    lay_out(plan, "gateway", tmp_path / "gateway")
    keyring = assemble(
        {path: read_document(path, (tmp_path / "gateway" / path).read_text(), policy_uid=UID) for path in DOCUMENTS}
    ).keyring
    secret = base64.urlsafe_b64encode(keyring.current.secret.get_secret_value()).rstrip(b"=")
    files = [path.read_bytes() for path in (tmp_path / "engine").rglob("*") if path.is_file()]
    assert files
    assert not [text for text in files if secret in text]
    assert secret in (tmp_path / "gateway" / layout.SALT_KEYRING).read_bytes(), "the search would find it"


def test_a_gateways_token_is_admitted_by_its_engine(plan: Plan, tmp_path: Path) -> None:
    lay_out(plan, "gateway", tmp_path / "g")
    lay_out(plan, "engine", tmp_path / "e")
    material = assemble({path: read_document(path, (tmp_path / "g" / path).read_text(), policy_uid=UID) for path in DOCUMENTS})
    keys = EngineKeys.read((tmp_path / "e" / layout.ENGINE_KEYS).read_text())
    policy = open_policy((tmp_path / "e" / layout.ENGINE_POLICY).read_text(), keys, policy_uid=UID, in_force=None)
    for tenant in ("acme", "shared", "canary"):
        generation = material.keyring.generations[tenant]
        sharing = Sharing(tenant, Scope.TENANT, (tenant,))
        salt = derive_salt(
            material.keyring.current.secret.get_secret_value(), deployment=UID, generation=generation, sharing=sharing
        )
        token = sign_token(material.engine_keys.signing_key, policy_uid=UID, tenant=tenant, generation=generation, salt=salt)
        assert policy.admit(verify_token(token, engine_keys=keys.accepted, policy_uid=UID)).name == tenant
