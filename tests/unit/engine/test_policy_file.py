"""The mounted engine policy: what comes into force, and that nothing broken, older or foreign ever does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretBytes

from blockwarden_core import layout
from blockwarden_core.errors import DocumentError, StaleDocument, UnsealedDocument
from blockwarden_core.keys import EngineKey, EngineKeys
from blockwarden_core.policy import EnginePolicy, TenantShare, seal_policy
from blockwarden_engine.errors import PolicyTooLarge
from blockwarden_engine.policy import PolicyFile, PolicyWatcher

UID = "11111111-2222-3333-4444-555555555555"


def keys(*ids: str) -> EngineKeys:
    return EngineKeys(
        active=ids[-1], keys=tuple(EngineKey(id=name, key=SecretBytes(name.encode().ljust(32, b"."))) for name in ids)
    )


def policy(version: int, *names: str, uid: str = UID) -> EnginePolicy:
    tenants = tuple(TenantShare(name=name, guaranteed=10, limit=10, generation=1, floor=1) for name in names)
    return EnginePolicy(policy_uid=uid, version=version, tenants=tenants)


Mount = Callable[..., None]


@pytest.fixture
def mount(tmp_path: Path) -> Mount:
    """Writes the two mounted files as Kubernetes would: each whole, in any order."""

    def write(
        document: EnginePolicy | str | None = None, *, held: EngineKeys | None = None, by: EngineKeys | None = None
    ) -> None:
        for name in (layout.ENGINE_KEYS, layout.ENGINE_POLICY):
            (tmp_path / name).parent.mkdir(exist_ok=True)
        held = held or keys("k1")
        (tmp_path / layout.ENGINE_KEYS).write_text(held.text())
        if isinstance(document, EnginePolicy):
            document = seal_policy(document, by or held)
        if document is not None:
            (tmp_path / layout.ENGINE_POLICY).write_text(document)

    return write


@pytest.fixture
def file(tmp_path: Path) -> PolicyFile:
    return PolicyFile(tmp_path, UID)


def test_a_valid_policy_comes_into_force(mount: Mount, file: PolicyFile) -> None:
    mount(policy(1, "acme"))
    assert file.load() == policy(1, "acme") == file.in_force
    assert file.error is None
    assert file.keys == keys("k1")
    assert file.poll() is False


@pytest.mark.parametrize(
    ("document", "by", "error"),
    [
        (None, None, DocumentError),
        ("{", None, DocumentError),
        (policy(1, "acme"), keys("k2"), UnsealedDocument),
        (policy(1, "acme", uid="other"), None, StaleDocument),
    ],
    ids=["absent", "broken", "forged", "foreign"],
)
def test_without_a_valid_policy_load_raises(
    mount: Mount, file: PolicyFile, document: EnginePolicy | str | None, by: EngineKeys | None, error: type[Exception]
) -> None:
    mount(document, by=by)
    with pytest.raises(error):
        file.load()
    assert file.in_force is None
    assert file.error


@pytest.mark.parametrize(
    "document",
    ["{", policy(2, "acme", uid="other"), policy(4, "acme", "late"), policy(5, "evil")],
    ids=["broken", "foreign", "older", "same version, other contents"],
)
def test_a_bad_file_keeps_the_last_good_policy(mount: Mount, file: PolicyFile, document: EnginePolicy | str) -> None:
    good = policy(5, "acme")
    mount(good)
    file.load()
    mount(document)
    assert file.poll() is False
    assert file.in_force == good
    assert file.error and "acme" not in file.error
    mount(good)
    assert file.poll() is False
    assert file.error is None


def test_a_policy_sealed_with_a_key_that_arrives_later_waits_for_it(mount: Mount, file: PolicyFile) -> None:
    mount(policy(1, "acme"))
    file.load()
    mount(policy(2, "acme", "beta"), by=keys("k1", "k2"))
    assert file.poll() is False
    assert file.error
    mount(held=keys("k1", "k2"))
    assert file.poll() is True
    assert file.in_force == policy(2, "acme", "beta")
    assert file.error is None


def test_new_keys_count_even_when_the_policy_beside_them_is_broken(mount: Mount, file: PolicyFile) -> None:
    mount(policy(1, "acme"))
    file.load()
    mount("{", held=keys("k1", "k2"))
    assert file.poll() is True
    assert file.keys == keys("k1", "k2")
    assert file.in_force == policy(1, "acme")
    assert file.error


def test_an_unreadable_mount_is_an_error_that_clears(mount: Mount, file: PolicyFile, tmp_path: Path) -> None:
    mount(policy(1, "acme"))
    file.load()
    (tmp_path / layout.ENGINE_POLICY).rename(tmp_path / "away")
    assert file.poll() is False
    assert file.error == "policy/engine.json: cannot be read: No such file or directory"
    (tmp_path / "away").rename(tmp_path / layout.ENGINE_POLICY)
    assert file.poll() is False
    assert file.error is None


def test_what_the_engine_cannot_enforce_is_refused(mount: Mount, tmp_path: Path) -> None:
    def check(document: EnginePolicy) -> None:
        if document.version == 2:
            raise PolicyTooLarge("tenants: too much")

    file = PolicyFile(tmp_path, UID, check=check)
    mount(policy(1, "acme"))
    file.load()
    mount(policy(2, "acme", "beta"))
    assert file.poll() is False
    assert file.error == "tenants: too much"
    assert file.in_force == policy(1, "acme")


def test_no_key_shows_in_an_error_or_a_repr(mount: Mount, file: PolicyFile) -> None:
    mount(policy(1, "acme"), by=keys("k2"))
    with pytest.raises(DocumentError) as caught:
        file.load()
    shown = f"{caught.value} {file.error} {file.keys!r}"
    assert "k1..." not in shown
    assert keys("k1").text() not in shown


def test_the_watcher_reports_a_change_once(mount: Mount, file: PolicyFile) -> None:
    mount(policy(1, "acme"))
    file.load()
    changes = threading.Semaphore(0)
    watcher = PolicyWatcher(file, changes.release, interval=0.01)
    watcher.start()
    try:
        mount(policy(2, "acme", "beta"))
        assert changes.acquire(timeout=10)
        assert file.in_force == policy(2, "acme", "beta")
        assert not changes.acquire(timeout=0.1)
    finally:
        watcher.stop()
        watcher.join(timeout=10)
    assert not watcher.is_alive()


def test_a_watch_that_fails_says_so_and_goes_on(mount: Mount, file: PolicyFile) -> None:
    mount(policy(1, "acme"))
    file.load()
    calls = threading.Semaphore(0)

    def fail() -> None:
        calls.release()
        raise RuntimeError("secret detail")

    watcher = PolicyWatcher(file, fail, interval=0.01)
    watcher.start()
    try:
        for version in (2, 3):
            mount(policy(version, "acme"))
            assert calls.acquire(timeout=10)
    finally:
        watcher.stop()
        watcher.join(timeout=10)
    assert file.in_force == policy(3, "acme")
    assert file.error == "EnginePolicy: the watch failed with RuntimeError"
