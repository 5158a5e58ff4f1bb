"""Settings, mounted documents, metrics and log lines."""

from __future__ import annotations

import io
import json
import logging
import sys
from pathlib import Path

import pytest

from blockwarden_core import layout
from blockwarden_core.errors import DocumentError
from blockwarden_gateway.errors import StartError
from blockwarden_gateway.exchange import Exchange
from blockwarden_gateway.logs import Log, LogHandler
from blockwarden_gateway.material import assemble, read_document
from blockwarden_gateway.metrics import Metrics
from blockwarden_gateway.mounts import Mounts
from blockwarden_gateway.routes.call import Tally
from blockwarden_gateway.settings import read_settings
from blockwarden_gateway.tls import Certificates

POD = {layout.POD_UID_ENV: "pod", layout.POLICY_UID_ENV: "uid-1"}


def test_the_public_port_follows_its_certificate(tmp_path):
    environment = POD | {layout.ROOT_ENV: str(tmp_path)}
    assert read_settings(environment).public_port == 8080
    certificate = tmp_path / layout.PUBLIC_TLS / layout.TLS_CERT
    certificate.parent.mkdir(parents=True)
    certificate.touch()
    settings = read_settings(environment)
    assert (settings.public_port, settings.public_tls, settings.internal_port) == (8443, True, 9090)


@pytest.mark.parametrize("name", sorted(POD))
def test_a_pod_without_its_identity_does_not_start(name):
    with pytest.raises(StartError, match=f"{name} is not set"):
        read_settings({key: value for key, value in POD.items() if key != name})


def test_a_policy_of_somebody_else_is_not_taken(material):
    with pytest.raises(DocumentError, match="another TenantPolicy"):
        read_document(layout.GATEWAY_POLICY, material.policy.text(), policy_uid="uid-2")


def test_a_key_that_is_listed_twice_is_nobodys(material):
    key = {"digest": "0" * 64, "tenant": "acme"}
    with pytest.raises(DocumentError, match="listed twice"):
        read_document(layout.API_KEYS, json.dumps({"keys": [key, key | {"tenant": "globex"}]}), policy_uid="uid-1")


def test_a_missing_document_is_named(material):
    with pytest.raises(DocumentError, match=r"keyring\.json"):
        assemble({layout.GATEWAY_POLICY: material.policy})
    with pytest.raises(DocumentError, match=r"keys.json and .*digests.json"):
        assemble({layout.GATEWAY_POLICY: material.policy, layout.SALT_KEYRING: material.keyring})


@pytest.fixture
def root(tmp_path: Path, material) -> Path:
    documents = {
        layout.GATEWAY_POLICY: material.policy, layout.SALT_KEYRING: material.keyring,
        layout.ENGINE_KEYS: material.engine_keys, layout.API_KEYS: material.api_keys,
    }  # fmt: skip
    for path, document in documents.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(document.text())
    return tmp_path


def mounts_of(root: Path) -> Mounts:
    return Mounts(root, policy_uid="uid-1", log=Log(io.StringIO()), metrics=Metrics())


def test_documents_survive_the_way_through_files(root, material):
    assert mounts_of(root).material == material


def test_a_broken_file_keeps_the_last_good_one_until_it_is_mended(root, material):
    mounts = mounts_of(root)
    path, good = root / layout.SALT_KEYRING, material.keyring.text()
    path.write_text(good.replace("secrets", "secretz"))
    assert mounts.reload().keyring == material.keyring
    assert mounts.error == "salt/keyring.json: SaltKeyring: secrets: Field required"
    path.unlink()
    mounts.reload()
    assert mounts.error == "salt/keyring.json: cannot be read"
    path.write_text(good)
    mounts.reload()
    assert mounts.error is None


def test_a_volume_is_replaced_by_moving_one_link(tmp_path, root, material):
    volume = tmp_path / "volume"
    for name, generation in (("a", 3), ("b", 4)):
        (volume / name).mkdir(parents=True)
        document = material.keyring.model_copy(update={"generations": {**material.keyring.generations, "acme": generation}})
        (volume / name / "keyring.json").write_text(document.text())
    link = root / layout.SALT_KEYRING
    link.unlink()
    (volume / "now").symlink_to("a")
    link.symlink_to(volume / "now" / "keyring.json")
    mounts, seen = mounts_of(root), []
    mounts.on_change(lambda material: seen.append(material.keyring.generations["acme"]))
    mounts.reload()
    (volume / "next").symlink_to("b")
    (volume / "next").rename(volume / "now")
    mounts.reload()
    assert seen == [3, 4]


def test_a_gateway_with_a_broken_file_does_not_start(root):
    (root / layout.API_KEYS).write_text("{")
    with pytest.raises(StartError, match=r"cannot start: api-keys/digests.json: ApiKeys"):
        mounts_of(root)


def test_a_gateway_without_its_certificates_does_not_start(tmp_path):
    with pytest.raises(StartError, match=r"^cannot start: tls/client: "):
        Certificates(tmp_path, public=False, log=Log(io.StringIO()))


def test_metrics_drop_the_tenants_that_left():
    metrics = Metrics()
    for tenant in ("acme", "globex", ""):
        exchange = Exchange("gw-1", "completions", 0.0, tenant=tenant, status=200, first_token=0.5, tally=Tally(10, 2, 8))
        metrics.account(exchange, 1.0)
    metrics.keep(frozenset({"acme"}))
    text = metrics.show({"acme": 3}, {"acme": {"3": 1}}, {True: 1}, {("0.1.0", "0.32.0"): 2}).decode()
    assert 'blockwarden_gateway_requests_total{route="completions",status="200",tenant="acme"} 1.0' in text
    assert 'blockwarden_gateway_tokens_total{kind="cached",tenant="acme"} 8.0' in text
    assert 'blockwarden_gateway_salt_generation{tenant="acme"} 3.0' in text
    assert 'blockwarden_gateway_in_flight{generation="3",tenant="acme"} 1.0' in text
    assert 'blockwarden_gateway_engine_versions{plugin="0.1.0",vllm="0.32.0"} 2.0' in text
    assert "globex" not in text


def test_gauges_forget_what_is_over():
    metrics = Metrics()
    metrics.show({"acme": 3}, {"acme": {"3": 1}}, {True: 1}, {("0.1.0", "0.32.0"): 2})
    text = metrics.show({}, {}, {}, {}).decode()
    assert "acme" not in text
    assert "0.32.0" not in text
    assert 'blockwarden_gateway_engines{attested="true"} 0.0' in text


def test_a_librarys_warning_becomes_one_line_without_its_traceback():
    stream = io.StringIO()
    try:
        raise ValueError("holds a secret")
    except ValueError:
        record = logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, "it failed", None, sys.exc_info())
        LogHandler(Log(stream)).handle(record)
    line = json.loads(stream.getvalue())
    assert (line["event"], line["logger"], line["message"], line["error"]) == (
        "library",
        "uvicorn.error",
        "it failed",
        "ValueError",
    )
    assert "secret" not in stream.getvalue()


def test_what_asyncio_says_of_a_lost_task_is_logged_without_its_exception():
    stream = io.StringIO()
    message = "Task exception was never retrieved\nfuture: <Task finished exception=ValueError('secret')>"
    LogHandler(Log(stream)).handle(logging.LogRecord("asyncio", logging.ERROR, "base_events.py", 1, message, None, None))
    assert json.loads(stream.getvalue())["message"] == "Task exception was never retrieved"
    assert "secret" not in stream.getvalue()
