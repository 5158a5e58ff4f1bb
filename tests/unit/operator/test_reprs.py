"""No value of the operator shows key material when it is printed: in a log line, a traceback or a failed assertion."""

from __future__ import annotations

import base64
import copy
import dataclasses
import importlib
import json
import pkgutil
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

import blockwarden_operator
from blockwarden_operator.api import TenantPolicy
from blockwarden_operator.checks import CheckInput
from blockwarden_operator.material import plan_material
from blockwarden_operator.pki import plan_pki
from blockwarden_operator.plan import read_status
from blockwarden_operator.render.names import Owner
from blockwarden_operator.salts import Credential

BEARERS = ("bytes", "Manifest", "PrivateKey")
"""What a field's type says where the field can hold key material: raw bytes, objects of the apiserver, keys."""
PUBLIC = {("Observed", "policy")}
"""The TenantPolicy itself, which holds references to Secrets and none of their values."""


def dataclasses_of_the_operator() -> Iterator[type]:
    for module in pkgutil.walk_packages(blockwarden_operator.__path__, "blockwarden_operator."):
        if module.name.endswith("__main__"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == module.name:
                yield value


def shown_bearers(kind: type) -> list[str]:
    """The fields of a dataclass that can hold key material and are printed."""
    return [
        entry.name
        for entry in dataclasses.fields(kind)
        if entry.repr and any(word in str(entry.type) for word in BEARERS) and (kind.__name__, entry.name) not in PUBLIC
    ]


def test_no_field_that_can_hold_key_material_is_printed() -> None:
    kinds = list(dataclasses_of_the_operator())
    assert {"Credential", "Pki", "Pair", "Material", "Observed", "Plan"} <= {kind.__name__ for kind in kinds}
    assert {kind.__name__: fields for kind in kinds if (fields := shown_bearers(kind))} == {}


def test_a_printed_field_is_found() -> None:
    """The broken twin."""

    @dataclasses.dataclass
    class Loud:
        value: "bytes | None"  # noqa: UP037 - as the operator's modules, whose annotations are text

    assert shown_bearers(Loud) == ["value"]


@pytest.fixture
def secrets_of(world: Any) -> set[str]:
    """Every secret of a policy that runs, in the forms in which it could be printed."""
    world.take()
    found: set[str] = set()
    for (kind, _), manifest in world.observed.children.items():
        if kind != "Secret":
            continue
        for name, encoded in manifest["data"].items():
            text = base64.b64decode(encoded).decode()
            if name == "tls.key":
                found |= set(text.splitlines()[1:-1])
            elif name == "api-key":
                found.add(text)
            elif name in ("keyring.json", "keys.json"):
                document = json.loads(text)
                found |= {
                    entry.get("secret") or entry["key"] for entry in (*document.get("secrets", ()), *document.get("keys", ()))
                }
    return found


def test_no_secret_shows_in_what_a_reconcile_holds(world: Any, secrets_of: set[str], now: datetime) -> None:
    observed = world.observed
    demo = Owner("demo", "ns", "uid-1")
    spec = TenantPolicy.of({**observed.policy, "status": {}}).spec
    material = plan_material(observed, spec, read_status(observed.policy), demo, drain_seconds=60, entropy=world.entropy)
    pki = plan_pki(demo, observed.secrets(), now=now, entropy=world.entropy)
    key = next(iter(material.generated.values()))
    held = [
        observed,
        world.plan(),
        material,
        material.rotation,
        pki,
        Credential("acme", None, "a generated API key", key.encode()),
        CheckInput(spec, referenced={"own": copy.deepcopy(observed.children["Secret", "demo-ca"])}),
    ]
    assert len(secrets_of) > 8
    assert key in secrets_of
    shown = "".join(repr(value) for value in held)
    encoded = {base64.b64encode(secret.encode()).decode().rstrip("=")[:-1] for secret in secrets_of}
    assert not [secret for secret in secrets_of | encoded if secret in shown]
