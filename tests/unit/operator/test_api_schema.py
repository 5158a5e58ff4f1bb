"""From models to a structural schema, construct by construct, and over the whole CRD."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from blockwarden_operator.api.base import ApiModel, list_map, rule, rules
from blockwarden_operator.api.reference import render_reference
from blockwarden_operator.api.schema import Schema, structural_schema
from blockwarden_operator.crd import render_chart_template, render_crd
from blockwarden_operator.errors import SchemaError


class Colour(StrEnum):
    RED = "Red"


class Leaf(ApiModel):
    """A leaf."""

    size: Annotated[int, Field(ge=1)] = 1


class Tree(ApiModel):
    """A tree."""

    name: Annotated[str, Field(max_length=8, json_schema_extra=rules(rule("self != 'x'", "name: is x: choose another")))]
    """Its name,
    over two lines."""
    colour: Colour | None = None
    kind: Literal["Oak"] = "Oak"
    leaf: Leaf = Leaf()
    """The leaf."""
    leaves: Annotated[tuple[Leaf, ...], Field(max_length=3, json_schema_extra=list_map("size"))] = ()
    amount: Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern="^[0-9]+%$")] | None = None
    labels: Annotated[dict[str, str], Field(max_length=2)] | None = None


def test_every_construct_has_its_structural_form() -> None:
    leaf = {"type": "object", "properties": {"size": {"default": 1, "type": "integer", "minimum": 1}}}
    assert structural_schema(Tree) == {
        "description": "A tree.",
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {
                "description": "Its name, over two lines.",
                "type": "string",
                "maxLength": 8,
                "x-kubernetes-validations": [{"rule": "self != 'x'", "message": "name: is x: choose another"}],
            },
            "colour": {"type": "string", "enum": ["Red"]},
            "kind": {"default": "Oak", "type": "string", "enum": ["Oak"]},
            "leaf": {"description": "The leaf.", "default": {}, **leaf},
            "leaves": {
                "type": "array",
                "maxItems": 3,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["size"],
                "items": {"description": "A leaf.", **leaf},
            },
            "amount": {
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "x-kubernetes-int-or-string": True,
                "minimum": 0,
                "pattern": "^[0-9]+%$",
            },
            "labels": {"type": "object", "maxProperties": 2, "additionalProperties": {"type": "string"}},
        },
    }


@pytest.mark.parametrize("unsayable", [Annotated[int, Field(gt=1)], int | bool, tuple[int, str]])
def test_what_a_structural_schema_cannot_say_is_an_error(unsayable: Any) -> None:
    class Wrong(BaseModel):
        value: unsayable

    with pytest.raises(SchemaError, match="a structural schema"):
        structural_schema(Wrong)


def root() -> Schema:
    return render_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]  # type: ignore[no-any-return]


def nodes(path: str, node: Schema) -> Iterator[tuple[str, Schema]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(f"{path}.{name}", child)
    for key in ("items", "additionalProperties"):
        if key in node:
            yield from nodes(f"{path}[]", node[key])


SPEC_NODES = [(path, node) for path, node in nodes("", root()) if path.startswith((".spec", ".status"))]


def test_every_field_is_described() -> None:
    named = [(path, node) for path, node in SPEC_NODES if not path.endswith("[]")]
    assert len(named) > 100
    assert [path for path, node in named if not node.get("description", "").endswith((".", ")"))] == []


def test_every_list_says_how_it_merges_and_how_long_it_may_be() -> None:
    lists = [(path, node) for path, node in SPEC_NODES if node.get("type") == "array" and path.startswith(".spec")]
    assert [path for path, node in lists if "maxItems" not in node or "x-kubernetes-list-type" not in node] == []


def test_every_map_and_string_of_the_spec_is_bounded() -> None:
    bounded = ("maxLength", "enum")
    spec = [(path, node) for path, node in SPEC_NODES if path.startswith(".spec")]
    assert [p for p, n in spec if n.get("type") == "string" and not any(key in n for key in bounded)] == []
    assert [p for p, n in spec if "additionalProperties" in n and "maxProperties" not in n] == []


def test_nothing_is_passed_through_unseen() -> None:
    assert [path for path, node in SPEC_NODES if "x-kubernetes-preserve-unknown-fields" in node] == []
    assert [
        path
        for path, node in SPEC_NODES
        if node.get("type") == "object" and not {"properties", "additionalProperties"} & node.keys()
    ] == []


def test_every_rule_names_a_field_and_the_mend() -> None:
    messages = [rule["message"] for _, node in nodes("", root()) for rule in node.get("x-kubernetes-validations", ())]
    assert len(messages) > 20
    assert [text for text in messages if text.count(": ") < 2 or "\n" in text or len(text) > 2048] == []


@pytest.mark.parametrize(
    "word",
    [
        "hostNetwork",
        "hostPID",
        "volumes",
        "containers",
        "serviceAccountName",
        "privileged",
        "capabilities",
        "command",
        "valueFrom",
        "lifecycle",
    ],
)
def test_no_field_of_a_pod_that_could_undo_isolation_is_there(word: str) -> None:
    assert [path for path, _ in SPEC_NODES if path.endswith(f".{word}")] == []


def test_the_chart_keeps_the_crd_and_escapes_what_helm_would_read() -> None:
    text = render_chart_template("kind: X\nmetadata:\n  name: tenantpolicies.blockwarden.dev\nspec: '{{ x }}'\n")
    assert text == (
        "kind: X\nmetadata:\n  name: tenantpolicies.blockwarden.dev\n"
        "  {{- if .Values.keep }}\n  annotations:\n    helm.sh/resource-policy: keep\n  {{- end }}\n"
        "spec: '{{ \"{{\" }} x }}'\n"
    )


def test_the_reference_has_every_field_and_every_rule() -> None:
    spec, status = root()["properties"]["spec"], root()["properties"]["status"]
    page = render_reference(spec, status)
    assert "| `spec.tenants[].kvCache.guaranteed`* | integer or string |" in page
    assert "| `status.rotation.observedID` |" in page
    for _, node in nodes("", spec):
        for declared in node.get("x-kubernetes-validations", ()):
            assert declared["message"].replace("|", "\\|").replace("<", "&lt;") in page
