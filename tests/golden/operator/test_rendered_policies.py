"""Every object of every example policy, as it is applied. UPDATE_GOLDEN=1 writes the files anew.

The values in Secrets are left out (the repository holds no keys, not even of tests), their names are not.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from blockwarden_operator.plan import Plan

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
REDACTED = base64.b64encode(b"left out").decode()


def canonical(plan: Plan) -> str:
    documents: list[dict[str, Any]] = []
    for manifest in plan.apply:
        shown = dict(manifest)
        if manifest["kind"] == "Secret":
            shown["data"] = dict.fromkeys(manifest["data"], REDACTED)
        documents.append(shown)
    return yaml.safe_dump_all([*documents, {"status": plan.status}], sort_keys=True, width=120)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_renders_to_its_golden(example: Path, example_plan: Callable[[Path], Plan]) -> None:
    golden = Path(__file__).parent / f"{example.stem}.yaml"
    text = canonical(example_plan(example))
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text(), "UPDATE_GOLDEN=1 writes it anew"


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_object_is_owned_and_nothing_is_rendered_twice(example: Path, example_plan: Callable[[Path], Plan]) -> None:
    plan = example_plan(example)
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in plan.apply]
    assert len(names) == len(set(names))
    for manifest in plan.apply:
        owners = manifest["metadata"]["ownerReferences"]
        assert [(owner["kind"], owner["controller"]) for owner in owners] == [("TenantPolicy", True)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_no_secret_value_is_outside_a_secret(example: Path, example_plan: Callable[[Path], Plan]) -> None:
    plan = example_plan(example)
    values = [value for manifest in plan.apply if manifest["kind"] == "Secret" for value in manifest["data"].values()]
    secrets = {base64.b64decode(value) for value in values} | {value.encode() for value in values}
    rest = yaml.safe_dump([manifest for manifest in plan.apply if manifest["kind"] != "Secret"] + [plan.status]).encode()
    metadata = yaml.safe_dump([manifest["metadata"] for manifest in plan.apply]).encode()
    assert secrets
    assert not [secret for secret in secrets if secret in rest or secret in metadata]
