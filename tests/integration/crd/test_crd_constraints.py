"""Every constraint of every field of the spec, broken once on a real kube-apiserver.

The constraints are read from the CRD, so that a new field is tested as soon as `every-field.yaml` has it, and
`test_no_field_is_left_out` fails until it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml

from blockwarden_operator.crd import render_crd

pytestmark = pytest.mark.integration
Manifest = dict[str, Any]
Path_ = tuple[str | int, ...]
SCHEMA = render_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
EVERY_FIELD: Manifest = yaml.safe_load((Path(__file__).parent / "every-field.yaml").read_text())
ABSENT = object()


class Serves(Protocol):
    """What these tests need of the cluster fixture."""

    def create(self, manifest: Manifest, *, dry_run: bool = False, strict: bool = False) -> Manifest: ...


def fields(schema: Manifest, value: Any, path: Path_) -> Iterator[tuple[Path_, Manifest, Any]]:
    """Each field of the value with its schema: (path, schema, value); ABSENT where the value does not have it."""
    yield path, schema, value
    for name, child in schema.get("properties", {}).items():
        inner = value.get(name, ABSENT) if isinstance(value, dict) else ABSENT
        yield from fields(child, inner, (*path, name))
    if "items" in schema:
        yield from fields(schema["items"], value[0] if value is not ABSENT and value else ABSENT, (*path, 0))
    if "additionalProperties" in schema:
        key = next(iter(value)) if value is not ABSENT and value else "missing"
        yield from fields(schema["additionalProperties"], value[key] if key != "missing" else ABSENT, (*path, key))


WRONG_TYPE: dict[str, Any] = {"string": 7, "integer": "x", "number": "x", "boolean": "x", "object": "x", "array": "x"}
BREAKS: dict[str, tuple[Callable[[Manifest, Any], Any], str]] = {
    "type": (lambda schema, _: WRONG_TYPE[schema["type"]], "must be of type"),
    "enum": (lambda schema, _: 17 if schema["type"] == "integer" else "Nope", "Unsupported value"),
    "pattern": (lambda *_: "!\x01!", "should match"),
    "format": (lambda *_: "10.0.0.0/99", "must be of type cidr"),
    "minimum": (lambda schema, _: schema["minimum"] - 1, "should be greater than or equal to"),
    "maximum": (lambda schema, _: schema["maximum"] + 1, "should be less than or equal to"),
    "minLength": (lambda *_: "", "should be at least"),
    "maxLength": (lambda schema, _: "a" * (schema["maxLength"] + 1), "may not be more than"),
    "minItems": (lambda *_: [], "should have at least"),
    "maxItems": (lambda schema, value: value * (schema["maxItems"] + 1), "must have at most"),
    "maxProperties": (
        lambda schema, value: {f"k{n}": next(iter(value.values())) for n in range(schema["maxProperties"] + 1)},
        "must have",
    ),
}
"""For each constraint a value that breaks it, made of the schema and a value that keeps it, and what the apiserver says then."""


def place(manifest: Manifest, path: Path_, value: Any) -> Manifest:
    """A copy of the manifest with another value at the path; ABSENT removes it."""
    changed: Manifest = yaml.safe_load(yaml.safe_dump(manifest))  # no aliases: one place changes, not all that YAML anchors share
    node: Any = changed
    for step in path[:-1]:
        node = node[step]
    if value is ABSENT:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return changed


def named(path: Path_) -> str:
    """The path as the apiserver writes it."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


SAME_MODELS = {
    "spec.gateway.template": "spec.engine.template",
    "spec.engine.template.affinity.podAntiAffinity": "spec.engine.template.affinity.podAffinity",
}
"""Large parts that are one model in two places: broken once."""
ALL = list(fields(SCHEMA, EVERY_FIELD["spec"], ("spec",)))
CHOSEN = [
    part for part in ALL if part[2] is not ABSENT and not named(part[0]).startswith(tuple(f"{path}." for path in SAME_MODELS))
]
BROKEN = [
    pytest.param(path, bad(schema, value), said, id=f"{named(path)}-{constraint}")
    for path, schema, value in CHOSEN
    for constraint, (bad, said) in BREAKS.items()
    if constraint in schema
] + [
    pytest.param((*path, name), ABSENT, "Required value", id=f"{named((*path, name))}-required")
    for path, schema, value in CHOSEN
    for name in schema.get("required", ())
]


def test_every_constraint_of_the_schema_is_one_that_is_broken_here() -> None:
    keywords = {key for _, schema, _ in ALL for key in schema if not key.startswith("x-kubernetes-")}
    assert keywords - BREAKS.keys() == {
        "description",
        "default",
        "properties",
        "items",
        "additionalProperties",
        "required",
        "anyOf",
    }


def test_the_parts_that_are_left_out_are_the_same_models() -> None:
    schemas = {named(path): schema for path, schema, _ in ALL}
    for left_out, tested in SAME_MODELS.items():
        assert schemas[left_out]["properties"] == schemas[tested]["properties"]


def test_no_field_is_left_out() -> None:
    assert [named(path) for path, _, value in ALL if value is ABSENT] == []
    assert len(BROKEN) > 400


@pytest.mark.parametrize(("path", "bad", "said"), BROKEN)
def test_a_broken_constraint_is_refused_by_name(server: Serves, refused: Any, path: Path_, bad: Any, said: str) -> None:
    with pytest.raises(refused) as answer:
        server.create(place(EVERY_FIELD, path, bad), dry_run=True)
    assert [m for f, m in answer.value.causes if f == named(path) and said in m], answer.value.text


def test_unbroken_no_field_is_refused(server: Serves, refused: Any) -> None:
    """The twin: the same policy without a broken constraint is refused for its alternatives only."""
    with pytest.raises(refused) as answer:
        server.create(EVERY_FIELD, dry_run=True, strict=True)
    assert all(
        text in answer.value.text
        for text in ("spec.model.source: names no source or several", "a peer is an ipBlock or selectors")
    )
    assert not any(said in answer.value.text for said in ("must be of type", "should match", "Required value", "unknown field"))
